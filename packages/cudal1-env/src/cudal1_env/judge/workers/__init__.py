"""Worker processes seen from the judge: starting, stopping, killing them, and the folders in which they build."""
