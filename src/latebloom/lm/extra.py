"""What all of `latebloom.lm` needs: other packages that are installed and quiet, and a folder to write to."""

from importlib.util import find_spec
from pathlib import Path

from latebloom.engine.files import TEMPORARY, make_folder
from latebloom.errors import ConfigError
from latebloom.integrations.load_model import quiet_transformers


def need(*packages: str) -> None:
    """Raise a ConfigError unless the packages are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"lm: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            "pip install 'latebloom[lm]'"
        )


def need_transformers() -> None:
    """Import Transformers quietly; raise a ConfigError if a package of the extra `lm` is not installed."""
    need("transformers", "tokenizers", "accelerate")
    quiet_transformers()


def begin_folder(folder: Path, *known: str) -> None:
    """Create a folder; raise if it holds files other than `known` ones and those of a process that was killed."""
    try:
        make_folder(folder)
        inside = [one.name for one in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be written ({error.strerror})") from None
    if any(name not in known and not name.startswith(TEMPORARY) for name in inside):
        raise ConfigError(f"out: {folder} is a folder with other files; give a new one")
