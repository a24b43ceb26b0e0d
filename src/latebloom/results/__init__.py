"""Finished runs as records, and the results file that holds them."""
