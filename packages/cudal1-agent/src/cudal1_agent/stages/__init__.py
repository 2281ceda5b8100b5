"""The three stages. TRL's trainers do the training; these files prepare their input and record their log."""
