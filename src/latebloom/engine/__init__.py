"""One run from configuration to trained model."""
