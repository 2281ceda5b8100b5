"""Training data: tasks, prompts, examples, and the selection of a corpus's pairs."""
