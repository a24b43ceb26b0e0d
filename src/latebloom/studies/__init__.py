"""Sets of runs, and what executes them."""
