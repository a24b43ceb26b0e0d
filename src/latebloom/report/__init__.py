"""Results in; charts, tables and pages out."""
