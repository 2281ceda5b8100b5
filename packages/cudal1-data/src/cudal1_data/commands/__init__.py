"""The larger commands of `cudal1-data`, one per file."""
