"""Corpora: token files say what the texts say, continue after a kill with an equal result, and bad input is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_lm import SMALL, write_texts

from latebloom.errors import ConfigError, DiskFullError
from latebloom.lm import prepare as preparing
from latebloom.lm.corpus import DOCUMENTS, MANIFEST, Corpus
from latebloom.lm.documents import list_files
from latebloom.lm.prepare import Preparing, draw_files, prepare
from latebloom.lm.tokenizer import END, read_tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_decoding_the_tokens_gives_the_texts_of_the_split(corpus):
    tokenizer, end = read_tokenizer(corpus.folder)
    listed = [json.loads(line) for line in (corpus.folder / DOCUMENTS).read_text().splitlines()[1:]]
    for split in ("train", "validation", "test"):
        tokens = corpus.split(split)
        ends = tokens.document_ends(corpus.end_token).tolist()
        starts = [0, *ends[:-1]]
        decoded = [tokenizer.decode(tokens.read(a, b - 1).tolist()) for a, b in zip(starts, ends, strict=True)]
        assert decoded == [Path(one["path"]).read_text() for one in listed if one["split"] == split]
        assert ends[-1] == len(tokens) == corpus.manifest["splits"][split]["tokens"]
    assert end == END


def test_a_text_that_names_the_end_token_stays_one_document(texts, tmp_path):
    folder = write_texts(tmp_path / "texts")
    for file in folder.rglob("*.py"):
        file.write_text(f"# {END} is a token\n{file.read_text()}")
    made = prepare([folder], tmp_path / "corpus", SMALL)
    for split, one in made.manifest["splits"].items():
        assert len(made.split(split).document_ends(made.end_token)) == one["documents"]


def test_tokens_are_read_across_files(texts, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "SHARD", 4_000)
    made = prepare([texts], tmp_path / "corpus", SMALL)
    assert len(made.manifest["splits"]["train"]["files"]) > 3
    whole = corpus.split("train").read(0, len(corpus.split("train")))
    tokens = made.split("train")
    assert np.array_equal(tokens.read(0, len(tokens)), whole)
    assert np.array_equal(tokens.read(100, 5_000), whole[100:5_000])
    assert np.array_equal(tokens.document_ends(0), corpus.split("train").document_ends(0))


PREPARE = """
import sys, time
from pathlib import Path
from latebloom.lm import prepare as preparing
preparing.SHARD = 2_000
write = preparing.write_file
def slowly(path, content):
    time.sleep(0.02)
    write(path, content)
preparing.write_file = slowly
preparing.prepare([Path(sys.argv[1])], Path(sys.argv[2]), preparing.Preparing(vocabulary=320, traces=0.2))
"""


def test_a_corpus_that_was_killed_again_and_again_ends_as_one_that_was_not(texts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PREPARE)

    def start(out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(texts), str(tmp_path / out)])

    assert start("whole").wait(60) == 0
    for files in (1, 3, 6, 12):  # killed while it writes the n-th file
        process = start("killed")
        while process.poll() is None and len(list((tmp_path / "killed").rglob("*"))) < files:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "killed" / MANIFEST).exists()
    assert start("killed").wait(60) == 0
    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert {name: one for name, one in killed.items() if ".writing-" not in name} == whole
    assert Corpus.load(tmp_path / "killed", verify=True).hash == Corpus.load(tmp_path / "whole", verify=True).hash


def test_traces_are_their_share_of_the_training_text(texts, tmp_path):
    made = prepare([texts], tmp_path / "corpus", Preparing(vocabulary=320, traces=0.25))
    train = made.manifest["splits"]["train"]
    tokenizer, _ = read_tokenizer(made.folder)
    traced = sum(count for name, count in train["files"].items() if "traces" in name)
    tokens = made.split("train")
    text = tokenizer.decode(tokens.read(len(tokens) - traced, len(tokens)).tolist(), skip_special_tokens=True)
    assert len(text) / (len(text) + train["bytes"]) == pytest.approx(0.25, abs=0.02)
    assert all(word in text for word in ("table[", "# The number of", ">>> cells[", ">>> a, b, c, d, e ="))


def test_a_corpus_inside_its_own_texts_does_not_hold_its_own_files(texts, corpus, tmp_path):
    folder = shutil.copytree(texts, tmp_path / "texts")
    made = prepare([folder], folder / "corpora" / "mine", SMALL)
    assert made.hash == corpus.hash


def test_a_given_tokenizer_is_kept(texts, corpus, tmp_path):
    made = prepare([texts], tmp_path / "corpus", Preparing(tokenizer=str(corpus.folder)))
    assert made.tokenizer_hash == corpus.tokenizer_hash


def test_bad_input_is_one_sentence_and_changes_nothing(texts, corpus, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    before = contents(corpus.folder)
    for paths, out, settings, message in (
        (["nowhere"], "a", SMALL, r"data: there is no .*nowhere; give folders or files of text"),
        (["empty"], "b", SMALL, "data: there are no files in .*empty"),
        (["binary"], "c", SMALL, "there is no text in .*binary; left out: 1 binary"),
        ([texts], "other", SMALL, "is a folder with other files"),
        ([texts], "d", Preparing(tokenizer="nowhere"), "tokenizer: there is no nowhere; give a tokenizer.json"),
        ([texts], "e", Preparing(include=("*.rs",)), "there are no files in .* that match --include"),
        (
            [texts],
            corpus.folder,
            Preparing(vocabulary=400),
            r"other settings .*vocabulary: 320 -> 400.*; give a new folder",
        ),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            prepare([tmp_path / one for one in paths], tmp_path / out, settings)
        assert "\n" not in str(error.value)
    assert contents(corpus.folder) == before
    assert (tmp_path / "other" / "file").read_text() == "mine"
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(DiskFullError, match=r"MB for tokens, and .* has 0 MB; free some space and run"):
        prepare([texts], tmp_path / "full", SMALL)
    monkeypatch.undo()
    assert prepare([texts], tmp_path / "full", SMALL).hash == corpus.hash


def test_a_file_that_changes_meanwhile_and_a_changed_corpus_are_refused(tmp_path):
    folder = write_texts(tmp_path / "texts")
    out = tmp_path / "corpus"
    made = prepare([folder], out, SMALL)
    (out / MANIFEST).unlink()
    shard = next(iter(made.manifest["splits"]["test"]["files"]))
    (out / shard).unlink()
    with pytest.raises(ConfigError, match="is a corpus that is not finished"):
        Corpus.load(out)
    listed = [json.loads(line) for line in (out / DOCUMENTS).read_text().splitlines()[1:]]
    changed = Path(next(one["path"] for one in listed if one["split"] == "test"))
    text = changed.read_text()
    changed.write_text("another text\n")
    with pytest.raises(ConfigError, match=r"the text has changed since .* \(.* is another\); give a new --out"):
        prepare([folder], out, SMALL)
    changed.write_text(text)
    assert prepare([folder], out, SMALL).hash == made.hash
    content = bytearray((out / shard).read_bytes())
    content[0] ^= 1
    (out / shard).write_bytes(content)
    with pytest.raises(ConfigError, match="was changed; prepare the corpus again"):
        Corpus.load(out, verify=True)


def test_files_that_come_later_are_refused_and_a_mistake_leaves_no_settings(tmp_path):
    folder, out = write_texts(tmp_path / "texts"), tmp_path / "corpus"
    with pytest.raises(ConfigError, match="there is no"):
        prepare([tmp_path / "text"], out, SMALL)
    assert not out.exists()
    with pytest.raises(ConfigError, match="vocabulary: 10 is not possible; it must be 300 or more"):
        prepare([folder], out, Preparing(vocabulary=10))
    assert not out.exists()
    made = prepare([folder], out, SMALL)
    file = folder / "package0" / "module0.py"
    text = file.read_text()
    file.write_text(text[::-1])  # of the same size
    with pytest.raises(ConfigError, match=r"module0.py is another\); give a new --out"):
        prepare([folder], out, SMALL)
    file.write_text(text)
    assert prepare([folder], out, SMALL).hash == made.hash
    (folder / "more.py").write_text("more = 1\n")
    with pytest.raises(ConfigError, match=r"\(48 files then, 49 now\); give a new --out"):
        prepare([folder], out, SMALL)


def test_of_too_much_text_files_are_drawn_and_always_the_same(texts):
    files = list_files([texts])
    sizes = {path: path.stat().st_size for path, _ in files}
    drawn = draw_files(files, sum(sizes.values()) // 3)
    total = sum(sizes[path] for path, _ in drawn)
    assert sum(sizes.values()) // 3 - max(sizes.values()) < total <= sum(sizes.values()) // 3
    assert drawn == [one for one in files if one in drawn]
    assert drawn == draw_files(files[::-1], sum(sizes.values()) // 3)[::-1]
    assert draw_files(files, sum(sizes.values())) == files
