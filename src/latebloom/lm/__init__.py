"""Language models on text: a corpus from files, training with Transformers, and evaluation by length of context.

The commands are `latebloom lm prepare | train | evaluate | bench` and `latebloom trial`; docs/lm.md describes them. The
packages of the extra `lm` are imported when they are needed.
"""
