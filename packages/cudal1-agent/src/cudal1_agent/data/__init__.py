"""What is trained on: tasks, prompts, examples, and which pairs of a corpus may be used."""
