"""`python -m latebloom` is the command `latebloom`."""

from latebloom.cli import main

if __name__ == "__main__":
    main()
