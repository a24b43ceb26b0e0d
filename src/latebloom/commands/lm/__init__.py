"""Language models on text: prepare a corpus, train a hybrid with Transformers, evaluate any model by context."""
