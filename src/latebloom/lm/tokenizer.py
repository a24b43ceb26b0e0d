"""Tokenizers: a byte-level BPE that is trained on a corpus, or one that is given."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from latebloom.engine.files import write_file
from latebloom.errors import ConfigError, first_line, require, unreadable
from latebloom.lm.extra import need
from latebloom.reading import is_unreadable, read_json_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
"""The token between documents of a trained tokenizer."""
ENDS = (END, "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>")
"""Names of that token in other tokenizers, which are looked for if a tokenizer does not say."""
FILE = "tokenizer.json"


def check_vocabulary(vocabulary: int) -> None:
    """Raise unless a tokenizer with this many tokens can be trained."""
    wanted = "300 or more: 256 bytes, the end of a document and some merges"
    require(vocabulary >= 300, "vocabulary", vocabulary, wanted)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """Return a byte-level BPE tokenizer with this many tokens at most; the same texts give the same tokenizer."""
    need("tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    check_vocabulary(vocabulary)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(path: Path) -> tuple["Tokenizer", str]:
    """Return the tokenizer of a file, a model's folder or a corpus, and the name of its end-of-document token."""
    need("tokenizers")
    from tokenizers import Tokenizer

    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"tokenizer: there is no {file}; give a {FILE} or a folder that holds one")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"tokenizer: {file} cannot be read ({first_line(error)})") from None
    names = [_named_end(file.parent), *ENDS]
    end = next((name for name in names if name and tokenizer.token_to_id(name) is not None), None)
    if end is None:
        raise ConfigError(f"tokenizer: {file} has no end-of-document token, such as {' or '.join(ENDS[:3])}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, end


def _named_end(folder: Path) -> str | None:
    """Return the end-of-document token that a model's tokenizer_config.json names."""
    file = folder / "tokenizer_config.json"
    try:
        named = read_json_file(file, follow=True).get("eos_token")
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise unreadable(file, error) from None
        return None
    return named.get("content") if isinstance(named, dict) else named


def write_tokenizer(folder: Path, tokenizer: "Tokenizer", end: str) -> None:
    """Write a tokenizer so that `AutoTokenizer.from_pretrained(folder)` reads it."""
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "clean_up_tokenization_spaces": False}
    write_file(folder / "tokenizer_config.json", json.dumps(described, indent=2).encode())
    write_file(folder / FILE, tokenizer.to_str().encode())  # last: its presence says that both are there
