"""The operations that models are made of, one folder each.

Each folder has the module, a reference that says what it computes, and a kernel for stacked models (`*_triton.py`).
"""
