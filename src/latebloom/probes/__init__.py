"""Probes: questions about a trained model, each answered by a small table and one chart; and `inspect`.

Importing a probe registers it. `load_probes` imports those of this package.
"""

from importlib import import_module

NAMES = ("interference", "ablation", "sharpness", "state", "positions", "horizon")
"""The modules with a probe, in the order of the report."""


def place_of(name: str) -> int:
    """Return the place of a probe in the report; those of other packages come last."""
    return NAMES.index(name) if name in NAMES else len(NAMES)


def load_probes() -> None:
    """Register the probes of this package."""
    for name in NAMES:
        import_module(f"{__name__}.{name}")
