"""A small corpus, made once. The tiny Transformers hybrids stand beside the tests of the integrations."""

import sys
from pathlib import Path

import pytest
from small_lm import SMALL, write_texts

from latebloom.lm.corpus import Corpus
from latebloom.lm.prepare import prepare

sys.path.append(str(Path(__file__).parents[1] / "integrations"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def corpus(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare([texts], tmp_path_factory.mktemp("corpus") / "small", SMALL)
