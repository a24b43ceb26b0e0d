"""The mistakes a user can make, as exceptions with one sentence each."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class LatebloomError(Exception):
    """Something the user can mend; the command line prints its sentence and exits with status 2."""


class ConfigError(LatebloomError, ValueError):
    """A setting that is unknown, of the wrong type, or out of range."""


class CheckpointError(LatebloomError):
    """A checkpoint or run folder that is damaged, foreign, or in use."""


class DiskFullError(LatebloomError):
    """There is no room left to write to; what was written before is whole."""


class ResultsError(LatebloomError):
    """A results file that is damaged, foreign, or of another version."""


class NonFiniteLossError(LatebloomError):
    """Training stopped because the loss was no longer a number."""


class InterruptedRun(LatebloomError):  # noqa: N818 (an interruption is not an error)
    """Training was asked to stop; what was reached is saved."""


def unknown(field: str, value: object, choices: Iterable[object]) -> ConfigError:
    """The error for a value that is none of the choices, naming the nearest one."""
    names = [str(choice) for choice in choices]
    near = get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{field}: {value!r} is not known; {hint}choices: {', '.join(names)}")


def require(condition: bool, field: str, value: object, wanted: str) -> None:
    """Raise the one-sentence error `field: value is not ...` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field}: {value!r} is not possible; it must be {wanted}")


@contextmanager
def full_disk_in_words(place: Path | str) -> Iterator[None]:
    """A disk that fills up while `place` is written is one sentence, whichever library meets it."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and "(os error 28)" not in str(error):  # safetensors has no errno
            raise
        raise DiskFullError(
            f"the disk is full: {place} could not be written; make room, and the same command goes on"
        ) from error
