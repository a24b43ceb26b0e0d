"""Delayed attention in Transformers, Lightning and Accelerate. Each file imports its library."""
