"""The arm process: one program, its memory, its calls."""
