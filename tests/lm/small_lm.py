"""Small texts, models and runs, which tests train in seconds."""

from pathlib import Path
from random import Random
from typing import Any

from latebloom.lm.corpus import Corpus
from latebloom.lm.prepare import Preparing
from latebloom.lm.train import Training

WORDS = (
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "sigma",
    "tau",
)


def write_texts(folder: Path, packages: int = 12, files: int = 4, lines: int = 60) -> Path:
    """Write files of random assignments, in packages, some in a sub-folder."""
    random = Random(7)
    for package in range(packages):
        for file in range(files):
            inside = folder / f"package{package}" / ("inner" if file % 2 else ".")
            inside.mkdir(parents=True, exist_ok=True)
            names = [random.choices(WORDS, k=3) for _ in range(lines)]
            text = (f"{one}_{package} = {two}({random.randrange(100)}) + [{three}]\n" for one, two, three in names)
            (inside / f"module{file}.py").write_text("".join(text))
    return folder


SMALL = Preparing(vocabulary=320, validation=0.1, test=0.2)


def small_model(vocabulary: int = 320, **fields: Any) -> dict[str, Any]:
    """Return an OLMo-Hybrid of a few thousand parameters."""
    return {
        "model_type": "olmo_hybrid",
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 0,
    } | fields


def small_training(corpus: Corpus, **settings: Any) -> Training:
    """Return a run of ten steps."""
    given: dict[str, Any] = {
        "context": 32,
        "batch": 2,
        "steps": 10,
        "learning_rate": 3e-3,
        "log_every": 2,
        "save_every": 3,
    }
    return Training(model=small_model(), corpus=str(corpus.folder), **given | settings)
