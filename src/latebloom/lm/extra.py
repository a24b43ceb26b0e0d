"""What all of `latebloom.lm` needs: other packages that are installed and quiet, and a folder to write to."""

import os
from importlib.util import find_spec
from pathlib import Path

from latebloom.engine.files import TEMPORARY, make_folder
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


def begin_folder(folder: Path, *known: str) -> None:
    """Create a folder; raise if it holds files other than `known` ones and those of a process that was killed."""
    try:
        make_folder(folder)
        inside = [one.name for one in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be written ({error.strerror})") from None
    if any(name not in known and not name.startswith(TEMPORARY) for name in inside):
        raise ConfigError(f"out: {folder} is a folder with other files; give a new one")
