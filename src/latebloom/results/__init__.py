"""Finished runs as one file: a row for each run and length, read back without the folders that it came from."""
