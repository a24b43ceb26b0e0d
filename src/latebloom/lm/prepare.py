"""Make a corpus from text files and tables: scan, split, train a tokenizer, and write token files.

Each step writes files that are complete or absent, and is skipped if they are there. So a command that was killed at
any moment continues where it was, and its result is the same, byte for byte. Memory holds one file, one shard of tokens
and a sketch of each document at a time.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from latebloom.differences import describe_differences
from latebloom.engine.files import TEMPORARY, digest, json_digest, make_folder, naming, write_file, write_json
from latebloom.errors import ConfigError, DiskFullError, catch_write_errors
from latebloom.fields import Bound, Count, at_least, check_fields
from latebloom.lm.corpus import DOCUMENTS, FORMAT, MANIFEST, SETTINGS, TOKENS, TRACES, Corpus, hash_file
from latebloom.lm.documents import SPLITS, Document, Scan, Split, list_files, scan_files, size_of, split_documents
from latebloom.lm.extra import begin_folder
from latebloom.lm.rows import Tables
from latebloom.lm.saved import read_saved, read_saved_lines
from latebloom.lm.tokenizer import END, FILE, check_vocabulary, read_tokenizer, train_tokenizer, write_tokenizer
from latebloom.lm.traces import training_document
from latebloom.lm.work import Work

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Share = Annotated[float, Bound(lambda value: 0 < value < 0.5, "above 0 and below 0.5")]
TraceShare = Annotated[float, Bound(lambda value: 0 <= value <= 0.5, "from 0 to 0.5")]
SHARD = 8_000_000
"""Bytes of text in a token file; an interrupted command loses at most one."""
BATCH = 1_000_000
"""Bytes of text that are encoded at once."""
TOKENIZER_TEXT = 50_000_000
"""Bytes of text that a tokenizer is trained on, drawn from the training documents."""
TRACES_IN_SHARD = 20_000
ROWS = "rows.bin"
"""The texts of rows, until the corpus is complete."""


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """How a corpus is made."""

    vocabulary: Count = 4096
    """Tokens of the tokenizer that is trained."""
    tokenizer: str | None = None
    """A tokenizer.json, or a folder with one, instead of a trained one."""
    split: Literal["auto", "package", "file"] = "auto"
    """What is never divided between splits: files, or all files below one top-level name; by default the latter if
    there are at least ten names."""
    validation: Share = 0.03
    """The share of the text that triggers are evaluated on."""
    test: Share = 0.07
    """The share of the text for evaluation."""
    include: tuple[str, ...] = ()
    """Patterns of file names, such as *.py; by default every text file."""
    largest: Count = 1_000_000
    """Larger files, and rows, are left out: they are mostly data."""
    traces: TraceShare = 0.0
    """The share of short traces in the training text, see `latebloom.lm.traces`."""
    at_most: Annotated[int, at_least(0)] = 0
    """Bytes of text; of more, files are drawn at random. 0 for all."""
    column: str | None = None
    """The column of tables that has the text; see `latebloom.lm.rows`. If it is given, JSON, JSON Lines and CSV files
    in folders are tables too."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.tokenizer is None:
            check_vocabulary(self.vocabulary)


def prepare(
    paths: Sequence[Path], out: Path, settings: Preparing, work: Work | None = None, without: Path | None = None
) -> Corpus:
    """Make a corpus in the folder `out`, or continue one; return it.

    Files in the folder `without`, by default `out`, are no text of the corpus.
    """
    work, without = work or Work(), without or out
    files = check_text(paths, settings, without)
    if (out / SETTINGS).exists() or (out / MANIFEST).exists():
        _check_same(paths, out, settings)
        if changed := changed_text(files, out, settings):
            raise ConfigError(f"data: the text has changed since {out} was made from it ({changed}); give a new --out")
    if (out / MANIFEST).exists():
        (out / ROWS).unlink(missing_ok=True)
        return Corpus.load(out)
    given = None if settings.tokenizer is None else read_tokenizer(Path(settings.tokenizer))
    with catch_write_errors(out):
        if not (out / SETTINGS).exists():
            begin_folder(out)
        scan = _read_scan(out)
        if scan is None:
            scan = _scan(files, paths, out, settings, work)
            _write_scan(out, scan, files, settings)
        _check_room(out, sum(one.size for one in scan.documents))
        if not (out / FILE).exists():
            if given is None:
                work.begin("training the tokenizer", None)
                texts = _sample(out, scan.documents, settings)
                write_tokenizer(out, train_tokenizer(texts, settings.vocabulary), END)
            else:
                write_tokenizer(out, *given)
        tokenizer, end = read_tokenizer(out)
        manifest = _write_tokens(out, scan, settings, tokenizer, end, work)
        write_json(out / MANIFEST, manifest)
        (out / ROWS).unlink(missing_ok=True)
    return Corpus.load(out)


def check_text(paths: Sequence[Path], settings: Preparing, without: Path) -> list[tuple[Path, str]]:
    """Return the files of the text, drawn if it is too large; raise if there are none. Nothing is read or written."""
    files = list_files(paths, settings.include, without)
    if not files:
        raise ConfigError(
            f"data: there are no files in {', '.join(map(str, paths))}"
            + " that match --include" * bool(settings.include)
        )
    if settings.at_most and not (files := draw_files(files, settings.at_most)):
        raise ConfigError(
            f"data: every file is larger than the {settings.at_most / 1e6:g} MB of text that are drawn; make a corpus "
            "with `latebloom lm prepare` and give it to --data"
        )
    return files


def draw_files(files: Sequence[tuple[Path, str]], at_most: int) -> list[tuple[Path, str]]:
    """Return some files, in their order, with at most so many bytes; which ones depends on names and sizes alone."""
    drawn, left = set[Path](), at_most
    for file, _ in sorted(files, key=lambda item: digest(item[1].encode())):
        if (size := size_of(file)) <= left:
            drawn.add(file)
            left -= size
    return [one for one in files if one[0] in drawn]


def changed_text(files: Sequence[tuple[Path, str]], out: Path, settings: Preparing) -> str:
    """Say how the files differ from those that the corpus in `out` was made, or begun, from; empty if they do not.

    Names and sizes of all files are compared, and the content of documents that were written since.
    """
    if not (out / DOCUMENTS).exists():
        return ""
    scan = _read_scan(out)
    assert scan is not None
    with open(out / DOCUMENTS) as file:
        head = json.loads(file.readline())
    before, now = head.get("files", len(scan.documents) + sum(scan.left_out.values())), len(files)
    if before != now:
        return f"{before:,} file{'s' * (before != 1)} then, {now:,} now"
    made, listed = (out / DOCUMENTS).stat().st_mtime_ns, {str(path) for path, _ in files}
    tables = [Document(**one) for one in head.get("tables", [])]
    for one in (*(one for one in scan.documents if one.start is None), *tables):
        if one.path not in listed:
            return f"without {one.path}"
        try:
            found = Path(one.path).stat()
            is_same = found.st_size == one.size
            if is_same and found.st_mtime_ns >= made:
                is_same = hash_file(Path(one.path)) == one.digest
        except OSError:
            is_same = False
        if not is_same:
            return f"{one.path} is another"
    return "" if head.get("listing") in (None, _listing(files, settings)) else "files that were left out are others"


def _listing(files: Sequence[tuple[Path, str]], settings: Preparing) -> str:
    """Return a digest of the names and sizes of all files, with those of the documents and of files left out."""
    return json_digest([(name, min(size_of(path), settings.largest + 1)) for path, name in files])


def remove_corpus(out: Path) -> None:
    """Remove the files of a corpus, in an order after which an interrupted removal is begun again."""
    (out / MANIFEST).unlink(missing_ok=True)
    if (out / TOKENS).is_dir():
        shutil.rmtree(out / TOKENS)
    for name in (FILE, "tokenizer_config.json", ROWS, DOCUMENTS, SETTINGS):
        (out / name).unlink(missing_ok=True)


def _described(paths: Sequence[Path], settings: Preparing) -> dict:
    return {"paths": [str(path.resolve()) for path in paths], **json.loads(json.dumps(asdict(settings)))}


def _check_same(paths: Sequence[Path], out: Path, settings: Preparing) -> None:
    """Raise unless the corpus in `out` was made, or begun, from the same paths with the same settings."""
    older = {"at_most": 0, "column": None}  # corpora of earlier versions were made of all text, and of files
    before = older | read_saved(out / SETTINGS)
    if changed := describe_differences(before, _described(paths, settings)):
        raise ConfigError(f"out: {out} was prepared with other settings ({changed}); give a new folder")


def _scan(files: Sequence[tuple[Path, str]], paths: Sequence[Path], out: Path, settings: Preparing, work: Work) -> Scan:
    """Find and split the documents, and write the texts of rows and the settings."""
    tables = Tables.given(settings.column, paths, [path for path, _ in files])
    work.begin("reading", sum(size_of(file) for file, _ in files))
    temporary = out / f"{TEMPORARY}{ROWS}"
    try:
        with naming(temporary), open(temporary, "wb") as rows:
            scan = scan_files(files, settings.largest, work.advance, tables, rows)
            rows.flush()
            os.fsync(rows.fileno())
        if not scan.documents:
            reasons = ", ".join(f"{count} {reason}" for reason, count in scan.left_out.items()) or "nothing"
            raise ConfigError(f"data: there is no text in {', '.join(map(str, paths))}; left out: {reasons}")
        scan = split_documents(scan, {"validation": settings.validation, "test": settings.test}, settings.split)
        write_json(out / SETTINGS, _described(paths, settings))
        os.replace(temporary, out / ROWS)
    except (ConfigError, OSError):
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return scan


def _write_scan(out: Path, scan: Scan, files: Sequence[tuple[Path, str]], settings: Preparing) -> None:
    left_out, listing = dict(sorted(scan.left_out.items())), _listing(files, settings)
    paths = {Path(one.path): one for one in scan.documents if one.start is not None}
    tables = [asdict(replace(one, size=size_of(path), digest=hash_file(path))) for path, one in paths.items()]
    head = {"left_out": left_out, "split_by": scan.split_by, "listing": listing, "files": len(files), "tables": tables}
    lines = [head, *(asdict(one) for one in scan.documents)]
    write_file(out / DOCUMENTS, "".join(f"{json.dumps(line)}\n" for line in lines).encode())


def _read_scan(out: Path) -> Scan | None:
    if not (out / DOCUMENTS).exists():
        return None
    head, *rest = read_saved_lines(out / DOCUMENTS) or [{}]
    try:
        return Scan([Document(**one) for one in rest], Counter(head["left_out"]), head["split_by"])
    except (KeyError, TypeError):
        raise ConfigError(f"out: {out / DOCUMENTS} is damaged; give a new folder") from None


def _check_room(out: Path, text: int) -> None:
    """Raise if the disk has less room than tokens of this much text may take, at two bytes of text for one token."""
    wanted, free = text * 2, shutil.disk_usage(out).free
    if free < wanted and not (out / MANIFEST).exists():
        raise DiskFullError(
            f"out: {text / 1e6:.0f} MB of text may need {wanted / 1e6:.0f} MB for tokens, and {out} has "
            f"{free / 1e6:.0f} MB; free some space and run the same command to continue"
        )


def _read(out: Path, document: Document) -> str:
    """Return the text of a document; raise if the file is not what it was when it was scanned."""
    try:
        with open(document.path if document.start is None else out / ROWS, "rb") as file:
            file.seek(document.start or 0)
            content = file.read(-1 if document.start is None else document.size)
    except OSError as error:
        raise ConfigError(f"data: {document.path} can no longer be read ({error.strerror})") from None
    if digest(content) != document.digest:
        raise ConfigError(f"data: {document.path} was changed while the corpus was made; prepare it in a new folder")
    return content.decode().removeprefix("\ufeff")


def _sample(out: Path, documents: Sequence[Document], settings: Preparing) -> Iterator[str]:
    """Yield training documents in a fixed random order, up to a bound, with their share of traces."""
    order = [one for one in documents if one.split == "train"]
    Random(0).shuffle(order)
    size = 0
    for index, one in enumerate(order):
        text = _read(out, one)
        size += one.size
        yield text
        if settings.traces and index % 8 == 0:
            yield "".join(training_document(1, 32 * index + i) for i in range(32))
        if size > TOKENIZER_TEXT:
            return


def _shards(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Divide documents into shards of about `SHARD` bytes."""
    shard, size = [], 0
    for one in documents:
        shard.append(one)
        size += one.size
        if size >= SHARD:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _write_tokens(out: Path, scan: Scan, settings: Preparing, tokenizer: "Tokenizer", end: str, work: Work) -> dict:
    """Write the token files that are not there, and return the manifest."""
    tokenizer.encode_special_tokens = True  # a text that mentions a special token does not end its document
    vocabulary, end_token = tokenizer.get_vocab_size(), tokenizer.get_vocab()[end]
    dtype = "uint16" if vocabulary <= 2**16 else "uint32"
    by_split: dict[Split, list[Document]] = {name: [] for name in SPLITS}
    for one in scan.documents:
        by_split[one.split].append(one)
    total = sum(one.size for one in scan.documents)
    make_folder(out / TOKENS)
    work.begin("writing tokens", int(total * (1 + settings.traces)))
    splits: dict[str, dict] = {}
    files = [DOCUMENTS, FILE, "tokenizer_config.json"]
    for name, documents in by_split.items():
        written: dict[str, int] = {}
        for index, shard in enumerate(_shards(documents)):
            file = f"{TOKENS}/{name}-{index:05}.bin"
            if not (out / file).exists():
                write_file(out / file, _encode((_read(out, one) for one in shard), tokenizer, end_token, dtype, work))
            else:
                work.advance(sum(one.size for one in shard))
            written[file] = (out / file).stat().st_size // np.dtype(dtype).itemsize
        count = len(documents)
        if name == "train" and settings.traces:
            count += _write_traces(out, written, documents, settings, tokenizer, end_token, dtype, work)
        text = sum(one.size for one in documents)
        splits[name] = {"documents": count, "bytes": text, "tokens": sum(written.values()), "files": written}
        files += written
    left_out = dict(sorted(scan.left_out.items()))
    return {
        "format": FORMAT,
        "vocabulary": vocabulary,
        "end_token": end_token,
        "dtype": dtype,
        "split_by": scan.split_by,
        "left_out": left_out,
        "splits": splits,
        "files": {one: {"bytes": (out / one).stat().st_size, "sha256": hash_file(out / one)} for one in files},
    }


def _write_traces(
    out: Path,
    written: dict[str, int],
    documents: Sequence[Document],
    settings: Preparing,
    tokenizer: "Tokenizer",
    end_token: int,
    dtype: str,
    work: Work,
) -> int:
    """Write shards of traces until they are their share of the training text; return the number of documents."""
    text = sum(one.size for one in documents)
    wanted = text * settings.traces / (1 - settings.traces)
    fillers = _fillers(out, documents)
    done, index, shard = 0, 0, 0
    while done < wanted:
        texts: list[str] = []
        while done < wanted and len(texts) < TRACES_IN_SHARD:
            texts.append(training_document(0, index, fillers))
            done += len(texts[-1])
            index += 1
        file = f"{TOKENS}/{TRACES}-{shard:05}.bin"
        if not (out / file).exists():
            write_file(out / file, _encode(iter(texts), tokenizer, end_token, dtype, work))
        written[file] = (out / file).stat().st_size // np.dtype(dtype).itemsize
        shard += 1
    return index


def _fillers(out: Path, documents: Sequence[Document], count: int = 200) -> list[str]:
    """Return pieces of one to eight lines of training documents, for the text between the facts of a trace."""
    random, found = Random(2), []
    for one in random.sample(list(documents), min(count, len(documents))):
        lines = _read(out, one).splitlines(keepends=True)
        start = random.randrange(len(lines))
        piece = "".join(lines[start : start + random.randint(1, 8)])[:400]
        found.append(piece if piece.endswith("\n") else f"{piece}\n")
    return found


def _encode(texts: Iterator[str], tokenizer: "Tokenizer", end_token: int, dtype: str, work: Work) -> bytes:
    """Return the tokens of documents, each with the end token behind it."""
    pieces: list[np.ndarray] = []
    size = 0

    def batch_of(text: str) -> int:
        nonlocal size
        size += len(text)
        return size // BATCH

    for _, batch in groupby(texts, key=batch_of):
        together = list(batch)
        for encoded in tokenizer.encode_batch_fast(together, add_special_tokens=False):
            pieces.append(np.array([*encoded.ids, end_token], dtype=dtype))
        work.advance(sum(len(text.encode()) for text in together))
    return np.concatenate(pieces).tobytes()
