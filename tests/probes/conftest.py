"""The tiny Transformers hybrids stand beside the tests of the integrations, other models beside those of the delay."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / name) for name in ("integrations", "delay")]
