"""Losses on the last tokens of windows: in pieces as at once, for models that allow it; and the kinds of tokens."""

import numpy as np
import pytest
import torch
from small_lm import small_model
from torch.nn.functional import cross_entropy

from latebloom.errors import ConfigError
from latebloom.lm.corpus import Corpus
from latebloom.lm.kinds import KINDS, TokenKinds
from latebloom.lm.losses import LastTokens, last_losses
from latebloom.lm.sizes import build_model
from latebloom.lm.tokenizer import read_tokenizer
from latebloom.lm.windows import TrainingWindows, scored_windows, window_batch

MAMBA = {"mamba_n_heads": 2, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 16}
COMMON = {
    "vocab_size": 320,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
NO_CACHE = {"model_type": "bamba", **COMMON, "num_key_value_heads": 1, "attn_layer_indices": [1], **MAMBA}
"""Transformers' Bamba begins every piece with an empty state."""


@pytest.mark.parametrize(("config", "in_pieces"), [(small_model(), True), (NO_CACHE, False)])
def test_losses_are_those_of_a_plain_pass_in_pieces_or_not(config, in_pieces):
    model, _ = build_model(config, 0, 320, 64)
    model.train()
    tokens = torch.randint(320, (2, 200))
    last = LastTokens(model, piece=48)
    found = last_losses(last, tokens, 20)
    assert last.in_pieces is in_pieces
    assert model.training
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    wanted = cross_entropy(logits[:, -21:-1].flatten(0, 1), tokens[:, -20:].flatten(), reduction="none").view(2, 20)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_same_tokens_are_scored_at_every_context(corpus):
    windows = scored_windows(corpus, "test", 400, 16, 6)
    tokens = corpus.split("test")
    long, short = window_batch(tokens, windows, 400), window_batch(tokens, windows, 50)
    assert torch.equal(long[:, -50:], short)
    ends = tokens.document_ends(corpus.end_token)
    for one in windows:
        start = 0 if one.document == 0 else ends[one.document - 1]
        assert start + 16 <= one.stop <= ends[one.document]
        assert one.inside == (one.stop - 400 >= start)
    assert len({one.document for one in windows}) == len(windows) == 6
    assert scored_windows(corpus, "test", 400, 16, 6) == windows


def test_windows_of_training_are_the_tokens_in_order(corpus: Corpus):
    windows, tokens = TrainingWindows(corpus.split("train"), 32), corpus.split("train")
    joined = torch.cat([windows[index]["input_ids"] for index in range(len(windows))])
    assert joined.tolist() == tokens.read(0, len(windows) * 32).tolist()
    with pytest.raises(ConfigError, match=r"context: \d+ tokens are more than the .* of the training split"):
        TrainingWindows(tokens, len(tokens) + 1)
    with pytest.raises(ConfigError, match="no document of the test split has"):
        scored_windows(corpus, "test", 10**7, 16, 4)


def test_kinds_of_tokens(corpus):
    tokenizer, _ = read_tokenizer(corpus.folder)
    told = TokenKinds(tokenizer)
    ids = tokenizer.encode("alpha = beta( 7)\n").ids
    names = [KINDS[kind] for kind in told.of(ids, len(ids), 1_000)]
    texts = [tokenizer.decode([token]) for token in ids]
    for text, name in zip(texts, names, strict=True):
        assert name == ("closing bracket" if ")" in text else "name" if text.strip().isalpha() else "rest"), text
    filler = list(range(300, 320)) * 10
    copied = [5, 6, 7, 8]
    near, far = [*filler, *copied, 9, *copied], [*copied, *filler, 9, *copied]
    assert KINDS[told.of(near, 4, 50)[-1]] == "copied, within 1x"
    assert KINDS[told.of(far, 4, 50)[-1]] == "copied, from beyond 1x"
    # The window of 1x ends with the scored tokens. Their copy is within it if all four of its tokens are.
    for context, kind in ((59, "copied, within 1x"), (58, "copied, from beyond 1x")):
        window = [*filler, *copied, *filler[:50], 9, *copied]
        assert KINDS[told.of(window, 4, context)[-1]] == kind
        assert KINDS[told.of([*window, 10, 11], 6, context + 2)[-3]] == kind
    assert np.array_equal(told.of([1, 2, 3, 4, 5, 6, 7, 8], 4, 50), told._by_text[[5, 6, 7, 8]])
