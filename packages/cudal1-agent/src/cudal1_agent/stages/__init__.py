"""The three stages. TRL's trainers do the training; these files prepare what they are given and keep what they say."""
