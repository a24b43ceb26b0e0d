"""Prepare a corpus, train a language model on it with Transformers, and evaluate any model by context length."""
