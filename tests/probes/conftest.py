"""The tiny Transformers hybrids stand beside the tests of the integrations."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "integrations"))
