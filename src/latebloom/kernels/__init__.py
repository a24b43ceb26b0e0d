"""Fast paths beside the plain ones that say what they compute."""
