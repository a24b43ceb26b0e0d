"""The command `latebloom`, also as `python -m latebloom`.

The commands import torch, which takes seconds, so Ctrl-C and a closed pipe are handled here, before the import.
"""

import os
import sys
from io import TextIOWrapper

BROKEN_PIPE = 141
"""The exit status after a closed pipe, as a shell reports it: 128 + SIGPIPE."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Ctrl-C at any moment prints one line and exits with status 130; a closed pipe prints nothing."""
    try:
        _exit_when_interrupted()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a character that the terminal cannot show is not an error
        from latebloom import cli

        try:
            cli.main(arguments)
        finally:
            sys.stdout.flush()  # a closed pipe is noticed here, and not by the interpreter when it ends
    except KeyboardInterrupt:
        _exit_interrupted()
    except BrokenPipeError:
        os._exit(BROKEN_PIPE)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich turns it into a SystemExit
            os._exit(BROKEN_PIPE)
        raise


def _exit_when_interrupted() -> None:
    """Let Ctrl-C end the process; only a run in training handles it otherwise, to save its progress first.

    Python's own KeyboardInterrupt gets lost, or becomes another error, in torch's import.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a background job ignores Ctrl-C
        signal.signal(signal.SIGINT, lambda number, frame: _exit_interrupted())


def _exit_interrupted() -> None:
    # Written to the file descriptor: in a signal handler, sys.stderr may be in use or replaced.
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(2, b"\x1b[?25h\n")  # show the cursor that a progress bar hides, and end the line of ^C
    os.write(2, b"latebloom: stopped at once; a run keeps its last checkpoint\n")
    os._exit(130)


if __name__ == "__main__":
    main()
