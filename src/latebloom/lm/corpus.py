"""A prepared corpus: memory-mapped token files, their tokenizer, and a manifest with the hash of each file."""

import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from latebloom.engine.files import json_digest
from latebloom.errors import ConfigError, require, unreadable
from latebloom.lm.documents import Split
from latebloom.reading import NotPlainFileError, open_plain, read_json_file

MANIFEST, SETTINGS, DOCUMENTS, TOKENS = "manifest.json", "settings.json", "documents.jsonl", "tokens"
TRACES = "traces"
"""How the names of token files with traces begin."""
FORMAT = 1


class Tokens:
    """The tokens of one split, in files that are mapped into memory."""

    def __init__(self, files: list[Path], counts: list[int], dtype: str) -> None:
        self._starts = [0, *accumulate(counts)]
        self._maps = [
            np.memmap(file, dtype=dtype, mode="r", shape=(count,)) for file, count in zip(files, counts, strict=True)
        ]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens from `start` to `stop` as int64."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} are not within 0 to {len(self)}")
        pieces = []
        file = bisect_right(self._starts, start) - 1
        while start < stop:
            offset, end = self._starts[file], min(stop, self._starts[file + 1])
            pieces.append(self._maps[file][start - offset : end - offset])
            start, file = end, file + 1
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)

    def document_ends(self, end_token: int) -> np.ndarray:
        """Return the position after the end token of each document."""
        found = [np.flatnonzero(one == end_token) + start for one, start in zip(self._maps, self._starts, strict=False)]
        return np.concatenate(found) + 1 if found else np.zeros(0, np.int64)


@dataclass(frozen=True)
class Corpus:
    """A corpus as `latebloom lm prepare` has written it."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def load(cls, folder: Path, verify: bool = False) -> "Corpus":
        """Read a corpus; with `verify`, compare the hash of every file."""
        file = folder / MANIFEST
        if not file.exists():
            begun = (folder / SETTINGS).exists()
            raise ConfigError(
                f"data: {folder} is a corpus that is not finished; repeat its `latebloom lm prepare` command"
                if begun
                else f"data: {folder} is not a corpus; make one with: latebloom lm prepare {folder} --out CORPUS"
            )
        try:
            manifest = read_json_file(file, follow=True)
            known = manifest["format"]
        except (NotPlainFileError, ValueError, KeyError, TypeError):
            raise ConfigError(f"data: {file} is damaged; prepare the corpus again") from None
        except OSError as error:
            raise unreadable(file, error) from None
        require(known == FORMAT, f"data: {file}: format", known, str(FORMAT))
        corpus = cls(folder, manifest)
        for name, expected in manifest["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != expected["bytes"]:
                raise ConfigError(f"data: {path} is missing or has another size; prepare the corpus again")
            if verify and hash_file(path) != expected["sha256"]:
                raise ConfigError(f"data: {path} was changed; prepare the corpus again")
        return corpus

    @property
    def hash(self) -> str:
        """A digest of tokenizer and tokens: equal corpora have equal hashes, wherever their texts are."""
        return json_digest({name: one for name, one in self.manifest["files"].items() if name != DOCUMENTS})[:16]

    @property
    def vocabulary(self) -> int:
        return self.manifest["vocabulary"]

    @property
    def end_token(self) -> int:
        return self.manifest["end_token"]

    @cached_property
    def tokenizer_hash(self) -> str:
        return self.manifest["files"]["tokenizer.json"]["sha256"]

    def split(self, name: Split) -> Tokens:
        """Return the tokens of a split."""
        files = self.manifest["splits"][name]["files"]
        return Tokens([self.folder / one for one in files], [files[one] for one in files], self.manifest["dtype"])


def count_traces(corpus: Corpus) -> dict[str, int]:
    """Return how many documents and tokens of the training split are traces, see `latebloom.lm.traces`."""
    files = {
        name: n for name, n in corpus.manifest["splits"]["train"]["files"].items() if Path(name).name.startswith(TRACES)
    }
    tokens = Tokens([corpus.folder / one for one in files], list(files.values()), corpus.manifest["dtype"])
    return {"documents": len(tokens.document_ends(corpus.end_token)), "tokens": len(tokens)}


def hash_file(path: Path) -> str:
    with open(open_plain(path, os.O_RDONLY, follow=True), "rb") as file:
        return file_digest(file, "sha256").hexdigest()
