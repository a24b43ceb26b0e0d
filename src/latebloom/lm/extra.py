"""What `latebloom.lm` needs of other packages: that they are installed, and quiet."""

import os
from importlib.util import find_spec

from latebloom.errors import ConfigError


def need(*packages: str) -> None:
    """Raise a ConfigError unless the packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"lm: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            "pip install 'latebloom[lm]'"
        )


def quiet_transformers() -> None:
    """Import Transformers so that it downloads nothing and prints neither bars nor remarks about missing kernels."""
    need("transformers", "tokenizers", "accelerate")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
