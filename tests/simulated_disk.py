"""A disk that loses what was not flushed, for tests of power cuts."""

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Disk:
    """Everything under `root` that is on disk after each fsync."""

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    """By inode."""
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    """The names in each folder and their inodes."""
    moments: list[tuple[dict[int, bytes], dict[int, dict[str, int]], dict[int, dict[str, int]]]] = field(
        default_factory=list
    )
    """After each fsync: the flushed contents, the flushed names, and all names."""

    files: tuple[str, ...] = ()
    """The files whose writes are moments; all if empty."""

    def note_writes_to(self, *files: str) -> None:
        """Make moments of the writes of these files alone; what else is flushed is remembered all the same."""
        self.files = files

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            self.names[path.stat().st_ino] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self.contents[path.stat().st_ino] = path.read_bytes()
        is_noted = not self.files or path.name.removeprefix(".writing-") in self.files
        is_folder_of_noted = path.is_dir() and any((path / name).exists() for name in self.files)
        if not is_noted and not is_folder_of_noted:
            return
        present = {
            folder.stat().st_ino: {one.name: one.stat().st_ino for one in folder.iterdir()}
            for folder in [self.root, *(one for one in self.root.rglob("*") if one.is_dir())]
        }
        self.moments.append((dict(self.contents), dict(self.names), present))

    def restore(self, moment: int, into: Path, *, every_name: bool) -> None:
        """Make the folder that is found after a power cut."""
        contents, flushed, present = self.moments[moment]
        names = present if every_name else flushed
        folders = present.keys() | flushed.keys()

        def fill(inode: int, folder: Path) -> None:
            folder.mkdir()
            for name, inner in names.get(inode, {}).items():
                if inner in folders:
                    fill(inner, folder / name)
                else:
                    (folder / name).write_bytes(contents.get(inner, b""))

        fill(self.root.stat().st_ino, into)
