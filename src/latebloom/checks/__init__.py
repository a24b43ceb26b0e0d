"""Checks of components against their contracts, in the manner of scikit-learn's estimator checks.

`latebloom check MODULE` runs them. Each check is a function of a component that raises `Fails` with the reason in
words, or `NotApplicable`, or returns, perhaps with a note, and then the property in its docstring holds.
"""

from latebloom.checks.check import Finding, check_component, check_components, find_components

__all__ = ["Finding", "check_component", "check_components", "find_components"]
