"""Why it works, or does not: what stands in a model, and how far its parts reach."""
