"""Probes: the parts of a model, and its memory horizon."""
