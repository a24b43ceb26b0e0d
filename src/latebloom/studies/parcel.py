"""Folders of runs packed into one object, for machines without a shared file system."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

Parcel = dict[str, bytes]
"""The contents of files, by path relative to the folder of all runs."""


def pack(root: Path, names: Sequence[str]) -> Parcel:
    """Return the files in the folders `root/name`; missing folders are left out."""
    files = [file for name in names for file in sorted((root / name).rglob("*")) if file.is_file()]
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files if file.name != ".lock"}


def unpack(parcel: Parcel, root: Path, names: Sequence[str]) -> None:
    """Replace the folders `root/name` by those in the parcel, each atomically, in the order of the names."""
    with TemporaryDirectory(prefix=".arriving-", dir=root) as place:
        arrived, gone = Path(place) / "arrived", Path(place) / "gone"
        for path, content in parcel.items():
            (arrived / path).parent.mkdir(parents=True, exist_ok=True)
            (arrived / path).write_bytes(content)
        for name in names:
            for source, target in ((root / name, gone / name), (arrived / name, root / name)):
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(source, target)
