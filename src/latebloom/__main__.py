"""The command `latebloom`, also as `python -m latebloom`.

What the commands need takes seconds to import; Ctrl-C is heeded here before any of it is.
"""

import os
import sys
from io import TextIOWrapper


def main(arguments: list[str] | None = None) -> None:
    """Run a command; Ctrl-C is one line and exit status 130, at whatever moment it comes."""
    try:
        _leave_when_interrupted()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that cannot show a sign is no reason to fail
        from latebloom import cli

        cli.main(arguments)
    except KeyboardInterrupt:
        _leave()


def _leave_when_interrupted() -> None:
    """Ctrl-C ends the process, but while a run trains: then it is asked to save and stop.

    Python's own way, a KeyboardInterrupt, gets lost or becomes another error inside torch's import and pydantic.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, lambda number, frame: _leave())


def _leave() -> None:
    # Written to the descriptor: in a signal's handler sys.stderr may be in use, or be another for the moment.
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress bar hides the cursor, and ^C stands in the line
    os.write(2, b"latebloom: stopped at once; a run keeps the last checkpoint that it has made\n")
    os._exit(130)


if __name__ == "__main__":
    main()
