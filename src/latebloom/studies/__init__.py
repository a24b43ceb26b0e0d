"""Studies: sets of runs, and their execution."""
