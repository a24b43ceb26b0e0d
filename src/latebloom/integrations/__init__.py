"""Delayed attention in other people's trainers. Each file is thin, and imports its library when it is imported."""
