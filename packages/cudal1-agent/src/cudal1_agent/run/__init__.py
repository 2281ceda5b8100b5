"""A run on disk and in this process: its folder, session, verdicts, checkpoints and judge."""
