"""The JSON files of a run of a language model."""

from pathlib import Path
from typing import Any

from latebloom.errors import CheckpointError
from latebloom.reading import is_unreadable, read_json_file


def read_saved(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a run; raise if it is damaged or cannot be read now."""
    try:
        data = read_json_file(file, follow=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise CheckpointError(
                f"{file} cannot be read ({error.strerror}); nothing was changed, and the same command continues when "
                "it can be read"
            ) from None
        data = error.strerror if isinstance(error, OSError) else "it is not JSON"
    if not isinstance(data, dict):
        reason = data if isinstance(data, str) else "it holds no settings by name"
        raise CheckpointError(f"{file} is damaged: {reason}; put it back, or train the run again in a new folder")
    return data
