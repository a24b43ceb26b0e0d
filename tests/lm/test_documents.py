"""Documents of a corpus: what is left out, what counts as a duplicate, and that splits do not overlap."""

import shutil
from pathlib import Path
from random import Random

import pytest

from latebloom.errors import ConfigError
from latebloom.lm.documents import SPLITS, Scan, Split, line_sketch, list_files, scan_files, similarity, split_documents

SHARES: dict[Split, float] = {"validation": 0.1, "test": 0.2}


def scan(folder: Path, largest: int = 10_000) -> Scan:
    return scan_files(list_files([folder]), largest, lambda _: None)


def lines(seed: int, count: int = 40) -> list[str]:
    random = Random(seed)
    return [f"value_{random.randrange(10**9)} = {random.randrange(10**9)}\n" for _ in range(count)]


def test_binary_empty_and_large_files_are_left_out_and_counted(tmp_path):
    (tmp_path / "text.txt").write_text("".join(lines(0)))
    (tmp_path / "nul.bin").write_bytes(b"abc\0def")
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "large.txt").write_text("x" * 20_000)
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "cached.txt").write_text("cached text")
    found = scan(tmp_path)
    assert [Path(one.path).name for one in found.documents] == ["text.txt"]
    assert found.left_out == {"binary": 2, "empty": 1, "larger than 0.01 MB": 1}


def test_copies_that_differ_in_white_space_or_in_a_few_lines_are_duplicates(tmp_path):
    original = lines(1)
    (tmp_path / "a.py").write_text("".join(original))
    (tmp_path / "b.py").write_bytes("".join(original).replace("\n", "\r\n\r\n").encode())
    (tmp_path / "c.py").write_text("".join([*lines(2, 2), *original]))
    (tmp_path / "d.py").write_text("".join([*lines(3, 20), *original[:20]]))
    found = scan(tmp_path)
    assert [Path(one.path).name for one in found.documents] == ["a.py", "d.py"]
    assert found.left_out == {"duplicate": 1, "near duplicate": 1}


def test_the_estimated_similarity_is_near_that_of_the_sets_of_lines():
    for shared in (380, 390, 400):
        first, second = lines(4, 400), [*lines(4, 400)[:shared], *lines(5, 400 - shared)]
        exact = len(set(first) & set(second)) / len(set(first) | set(second))
        sketches = [line_sketch("".join(one).encode()) for one in (first, second)]
        assert sketches[0] is not None
        assert sketches[1] is not None
        assert similarity(sketches[0], sketches[1]) == pytest.approx(exact, abs=0.12)


def test_no_package_and_no_file_is_in_two_splits(texts):
    by_package = split_documents(scan(texts), SHARES, "package")
    where = {one.package: one.split for one in by_package.documents}
    assert all(one.split == where[one.package] for one in by_package.documents)
    assert set(where.values()) == set(SPLITS)
    by_file = split_documents(scan(texts), SHARES, "file")
    splits = {name: {one.split for one in by_file.documents if one.package == name} for name in where}
    assert max(map(len, splits.values())) > 1
    total = sum(one.size for one in by_file.documents)
    for split, share in SHARES.items():
        assert sum(one.size for one in by_file.documents if one.split == split) / total == pytest.approx(
            share, abs=0.05
        )


@pytest.mark.parametrize("by", ["auto", "file"])
def test_the_split_of_a_document_does_not_depend_on_where_the_folder_is(texts, tmp_path, by):
    shutil.copytree(texts, tmp_path / "copy")
    first, second = (split_documents(scan(one), SHARES, by) for one in (texts, tmp_path / "copy"))
    assert first.split_by == ("package" if by == "auto" else "file")
    assert [one.split for one in first.documents] == [one.split for one in second.documents]


def test_too_few_units_to_split_are_refused(tmp_path):
    (tmp_path / "only.txt").write_text("".join(lines(6)))
    with pytest.raises(ConfigError, match="1 file of text cannot be split into training, validation and test"):
        split_documents(scan(tmp_path), SHARES, "auto")
