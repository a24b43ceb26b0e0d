"""The documents of a corpus: text files and rows of tables, without binary files, duplicates and near duplicates.

Two documents are equal if they agree up to white space. They are near duplicates if the estimated share of lines that
they have in common, of all lines that occur in either (the Jaccard similarity), is at least `SIMILAR`. The estimate
comes from the smallest hashes of the lines, a bottom-k sketch. Of several alike, the first in the order of paths stays.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from hashlib import sha256
from heapq import nsmallest
from pathlib import Path
from typing import BinaryIO, Literal

from latebloom.errors import ConfigError
from latebloom.lm.rows import Tables, saved_shards

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SIMILAR = 0.8
"""Documents with at least this share of common lines are near duplicates."""
SKETCH, PROBED = 64, 16
"""The line hashes that are kept of a document, and how many of them look for similar documents."""
COMMON = 100
"""A line in more documents than this, such as one of a licence, does not look for similar ones."""
SHORT_LINE, FEW_LINES = 8, 5
"""Shorter lines are in almost every file, and documents with fewer lines are compared as a whole only."""
FEW_PACKAGES = 10
"""With fewer top-level names than this, documents are split by file."""
HIDDEN = ("__pycache__", "node_modules", "dataset_dict.json")
ABSENT = (PermissionError, FileNotFoundError)
"""Errors of files that are left out."""


@dataclass(frozen=True)
class Document:
    """A text file, or a row of a table, and the split that it belongs to."""

    path: str
    package: str
    """The first folder, or the file, below the folder that was given."""
    size: int
    """Bytes."""
    digest: str
    """SHA-256 of the text, because a file that changes later would change the corpus."""
    split: Split = "train"
    name: str = ""
    """The path below the folder that was given, which does not depend on where that folder is; of a row,
    with its number."""
    start: int | None = None
    """Of a row, where its text begins in the file with the texts of all rows; None for a file."""


@dataclass
class Scan:
    """The documents that were found, and how many files were left out, by reason."""

    documents: list[Document]
    left_out: Counter[str]
    split_by: str = "file"


def list_files(paths: Sequence[Path], include: Sequence[str] = (), out: Path | None = None) -> list[tuple[Path, str]]:
    """Return each file below the paths, and its path below the folder that was given, in the order of their paths.

    Hidden files and those in the folder `out`, where the corpus is made, are left out. A link is followed if it is
    given, and not if it is found in a folder.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"data: there is no {path}; give folders or files of text")
        if path.is_file():
            found.setdefault(path.resolve(), path.name)
            continue
        root = path.resolve()
        for file in _walk(root, None if out is None else out.resolve()):
            if not include or any(fnmatch(file.name, pattern) for pattern in include):
                found.setdefault(file, file.relative_to(root).as_posix())
    return sorted(found.items(), key=lambda item: str(item[0]))


def _walk(folder: Path, without: Path | None) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"data: {folder} cannot be read ({error.strerror})") from None
    shards = saved_shards(folder)
    if missing := sorted((shards or set()) - {one.name for one in inside}):
        raise ConfigError(f"data: {folder} is a saved dataset without its file {missing[0]}; copy or save it again")
    for one in inside:
        if shards is not None and one.name not in shards:
            continue
        if one.is_symlink() or one.name.startswith(".") or one.name in HIDDEN or one == without:
            continue
        if one.is_dir():
            yield from _walk(one, without)
        elif one.is_file():
            yield one


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 of one that is left out because it cannot be read."""
    try:
        return path.stat().st_size
    except ABSENT:
        return 0
    except OSError as error:
        raise ConfigError(f"data: {path} cannot be read ({error.strerror})") from None


def scan_files(
    files: Iterable[tuple[Path, str]],
    largest: int,
    tell: Callable[[int], None],
    tables: Tables | None = None,
    rows: BinaryIO | None = None,
) -> Scan:
    """Read every file, and return the documents that stay; `tell` is called with the bytes of each file.

    The texts of rows that stay are written to `rows`.
    """
    seen: set[bytes] = set()
    sketches: list[frozenset[int]] = []
    holders: defaultdict[int, list[int]] = defaultdict(list)
    scan = Scan([], Counter())
    for path, name, content, size, is_row in _contents(files, largest, tell, tables, scan.left_out):
        if reason := _unfit(content, size, largest):
            scan.left_out[reason] += 1
            continue
        whole = sha256(b" ".join(content.split())).digest()
        if whole in seen:
            scan.left_out["duplicate"] += 1
            continue
        sketch = line_sketch(content)
        if sketch is not None:
            rare = [holders[value] for value in nsmallest(PROBED, sketch) if len(holders[value]) < COMMON]
            if any(similarity(sketch, sketches[other]) >= SIMILAR for other in {i for one in rare for i in one}):
                scan.left_out["near duplicate"] += 1
                continue
            for one in rare:
                one.append(len(sketches))
            sketches.append(sketch)
        seen.add(whole)
        package, digest, start = name.partition("/")[0], sha256(content).hexdigest(), None
        if is_row:
            assert rows is not None
            start = rows.tell()
            rows.write(content)
            package = package.partition("#")[0]
        scan.documents.append(Document(str(path), package, len(content), digest, name=name, start=start))
    return scan


def _contents(
    files: Iterable[tuple[Path, str]],
    largest: int,
    tell: Callable[[int], None],
    tables: Tables | None,
    left_out: Counter[str],
) -> Iterator[tuple[Path, str, bytes, int, bool]]:
    """Yield path, name, content (empty if it is too large), size, and whether it is a row, of files and rows."""
    for path, name in files:
        try:
            size = path.stat().st_size
            is_table = tables is not None and tables.includes(path)
            content = b"" if size > largest or is_table else path.read_bytes()
        except ABSENT:
            left_out["not readable"] += 1
            continue
        except OSError as error:  # the next command may read it, and its corpus would be another
            raise ConfigError(f"data: {path} cannot be read ({error.strerror})") from None
        tell(size)
        if tables is None or not is_table:
            yield path, name, content, size, False
        elif (texts := tables.texts(path)) is None:
            left_out["table without text"] += 1
        else:
            for row, text in enumerate(texts):
                content = (text or "").encode(errors="replace")
                yield path, f"{name}#{row}", content, len(content), True


def _unfit(content: bytes, size: int, largest: int) -> str:
    """Return why a file is no document, or an empty string."""
    if size > largest:
        return f"larger than {largest / 1e6:g} MB"
    if not content.strip():
        return "empty"
    if b"\0" in content:
        return "binary"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "binary"
    return ""


def line_sketch(content: bytes) -> frozenset[int] | None:
    """Return the smallest hashes of the lines; None if there are too few to compare."""
    lines = {zlib.crc32(line) for line in map(bytes.strip, content.splitlines()) if len(line) >= SHORT_LINE}
    if len(lines) < FEW_LINES:
        return None
    mixed = {(value * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF for value in lines}  # CRC-32 is linear, so mix its bits
    return frozenset(nsmallest(SKETCH, mixed))


def similarity(first: frozenset[int], second: frozenset[int]) -> float:
    """Estimate the Jaccard similarity of two sets of lines from their sketches; 0 if it is below `SIMILAR`."""
    common, either = first & second, first | second
    if len(common) < SIMILAR * min(SKETCH, len(either)):  # an upper bound of the estimate, and quick
        return 0.0
    smallest = nsmallest(SKETCH, either)
    return sum(value in common for value in smallest) / len(smallest)


def split_documents(scan: Scan, shares: dict[Split, float], by: Literal["auto", "package", "file"]) -> Scan:
    """Assign whole packages, or files, to the splits, in an order that depends on their names alone."""
    if by == "auto":
        packages = {one.package for one in scan.documents if one.start is None}
        by = "package" if len(packages) >= FEW_PACKAGES else "file"
    label = "row" if by == "file" and all(one.start is not None for one in scan.documents) else by
    sizes: Counter[str] = Counter()
    for one in scan.documents:
        sizes[_unit(one, by)] += one.size
    if len(sizes) < len(SPLITS):
        raise ConfigError(
            f"data: {len(sizes)} {label}{'s' * (len(sizes) != 1)} of text cannot be split into training, validation "
            f"and test; give at least {len(SPLITS)}" + " or --split file" * (by == "package")
        )
    total, chosen = sum(sizes.values()), dict.fromkeys(sizes, SPLITS[0])
    order = sorted(sizes, key=lambda unit: sha256(unit.encode()).digest())
    for split, share in shares.items():
        wanted, got = share * total, 0
        for unit in order:
            is_free = chosen[unit] == SPLITS[0]
            if is_free and got < wanted and (got + sizes[unit] <= 1.5 * wanted):
                chosen[unit] = split
                got += sizes[unit]
        if got == 0:  # every unit is larger than the share
            free = [unit for unit in order if chosen[unit] == SPLITS[0]]
            chosen[min(free, key=lambda unit: sizes[unit])] = split
    documents = [replace(one, split=chosen[_unit(one, by)]) for one in scan.documents]
    return Scan(documents, scan.left_out, label)


def _unit(document: Document, by: str) -> str:
    return document.package if by == "package" else document.name
