"""Exceptions for what a user can correct, each with a message of one sentence."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class LatebloomError(Exception):
    """Base of the errors that a user can correct; the command line prints the message and exits with status 2."""


class ConfigError(LatebloomError, ValueError):
    """A setting that is unknown, of the wrong type, or out of range."""


class CheckpointError(LatebloomError):
    """A checkpoint or run folder that is damaged, foreign, or in use."""


class DiskFullError(LatebloomError):
    """The disk is full; files written before are complete."""


class ResultsError(LatebloomError):
    """A results file that is damaged, foreign, or of another version."""


class NonFiniteLossError(LatebloomError):
    """Training stopped because the loss was not finite."""


class InterruptedRun(LatebloomError):  # noqa: N818 (an interruption is not an error)
    """Training was interrupted and has saved its progress."""


def unknown(field: str, value: object, choices: Iterable[object]) -> ConfigError:
    """Return the error for a value that is none of the choices; it names the nearest one."""
    names = [str(choice) for choice in choices]
    near = get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{field}: {value!r} is not known; {hint}choices: {', '.join(names)}")


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error that another library raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()


def require(condition: bool, field: str, value: object, wanted: str) -> None:
    """Raise ConfigError `field: value is not possible; it must be wanted` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field}: {value!r} is not possible; it must be {wanted}")


@contextmanager
def catch_full_disk(place: Path | str) -> Iterator[None]:
    """Raise DiskFullError if the disk fills up while `place` is written, whichever library notices."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and "(os error 28)" not in str(error):  # safetensors has no errno
            raise
        raise DiskFullError(
            f"the disk is full: {place} could not be written; free some space and run the same command to continue"
        ) from error
