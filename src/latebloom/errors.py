"""Exceptions for what a user can correct, each with a message of one sentence."""

import errno
import os
import re
import sys
import warnings
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


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose files are missing, or not as they were written."""


class DiskError(LatebloomError):
    """A file could not be written; files written before are complete."""


class DiskFullError(DiskError):
    """The disk is full; files written before are complete."""


class ResultsError(LatebloomError):
    """A results file that is damaged, foreign, or of another version."""


class UnreadableError(CheckpointError, ResultsError):
    """A file that cannot be read now, and may be whole."""


class NonFiniteLossError(LatebloomError):
    """Training stopped because the loss was not finite."""


class InterruptedRun(LatebloomError):  # noqa: N818 (an interruption is not an error)
    """Training was interrupted and has saved its progress."""


class Note(UserWarning):
    """A warning for the user of a command, who sees its sentence alone."""


LIBRARIES = {"latebloom", "torch", "transformers", "accelerate", "lightning", "peft", "copy", "pickle", "contextlib"}
"""What may stand between a user's line and a warning of this package."""


def warn_user(text: str) -> None:
    """Warn at the nearest caller that is not a library, so that the warning shows a line of the user's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def unreadable(file: Path, error: OSError) -> UnreadableError:
    """Return the error for a file that cannot be read now and may be whole."""
    return UnreadableError(
        f"{error.filename or file} cannot be read ({error.strerror}); it may be whole, and nothing was changed; try "
        "the same command again when it can be read"
    )


def unknown(field: str, value: object, choices: Iterable[object]) -> ConfigError:
    """Return the error for a value that is none of the choices; it names the nearest one."""
    names = [str(choice) for choice in choices]
    near = get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{field}: {value!r} is not known; {hint}choices: {', '.join(names)}")


def printable(text: str, *, lines: bool = False) -> str:
    """Return text without characters that control a terminal, break a line or reorder letters; they are written as
    escapes such as \\x1b. With `lines`, line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if (lines and c in "\n\t") or c.isprintable() or c == " " else repr(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error that another library raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()


def require(condition: bool, field: str, value: object, wanted: str) -> None:
    """Raise ConfigError `field: value is not possible; it must be wanted` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{field}: {value!r} is not possible; it must be {wanted}")


@contextmanager
def refuse_unwritable(field: str, place: Path, kind: type[LatebloomError] = ConfigError) -> Iterator[None]:
    """Raise an error of the kind, which names the field, if a file cannot be written; a full disk is an OSError still,
    for `catch_write_errors`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_IS_FULL:
            raise
        raise kind(f"{field}: {place} cannot be written ({error.strerror})") from None


DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_FAILS = (
    errno.EIO, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ESTALE,
    errno.EINTR,
)  # fmt: skip
"""Errors of a write that may come without the name of the file."""
_TORCH_WRITES = ("PytorchStreamWriter failed", "] . unexpected pos ")
"""What torch.save says of any error of a write."""
_RUST_WRITES = "while serializing"
"""What safetensors says of any error of a write."""


@contextmanager
def catch_write_errors(place: Path | str) -> Iterator[None]:
    """Raise DiskError if a file in `place` cannot be written, whichever library notices."""
    try:
        yield
    except Exception as error:
        number, file = getattr(error, "errno", None), getattr(error, "filename", None)
        in_rust = re.search(r"\(os error (\d+)\)", str(error)) if number is None else None  # safetensors has no errno
        if in_rust:
            number = int(in_rust[1])
        if number in DISK_IS_FULL:
            raise DiskFullError(
                f"the disk is full: {place} could not be written; free some space and run the same command to continue"
            ) from error
        if any(words in str(error) for words in _TORCH_WRITES):
            raise DiskError(
                f"{place} could not be written completely, most likely because the disk is full; free some space and "
                "run the same command to continue"
            ) from error
        file = Path(file) if isinstance(file, str | Path) else None
        is_inside = file is not None and Path(place).absolute() in (file.absolute(), *file.absolute().parents)
        is_of_disk = isinstance(error, OSError) or (in_rust is not None and _RUST_WRITES in str(error))
        if not is_of_disk or not (is_inside or (file is None and number in _DISK_FAILS)):
            raise
        reason = error.strerror if isinstance(error, OSError) else os.strerror(number or 0)
        raise DiskError(
            f"{file or place} could not be written ({reason}); what was saved before is complete, and the same "
            "command continues it"
        ) from error
