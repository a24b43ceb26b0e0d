"""A small corpus, made once."""

from pathlib import Path

import pytest
from small_lm import SMALL, write_texts

from latebloom.lm.corpus import Corpus
from latebloom.lm.prepare import prepare


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def corpus(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare([texts], tmp_path_factory.mktemp("corpus") / "small", SMALL)
