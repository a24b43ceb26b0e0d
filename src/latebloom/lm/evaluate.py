"""Evaluate a causal language model by length of context: loss on the same tokens, kinds of tokens, and probes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from latebloom.errors import CheckpointError, ConfigError, LatebloomError
from latebloom.fields import Count, at_least, check_fields
from latebloom.integrations.load_model import RANDOM, load_model
from latebloom.lm.corpus import Corpus, hash_file
from latebloom.lm.extra import need_transformers
from latebloom.lm.kernels import choose_kernels
from latebloom.lm.kinds import KINDS, TokenKinds
from latebloom.lm.losses import LastTokens, last_losses
from latebloom.lm.probes import Prober, TooShort
from latebloom.lm.saved import read_saved
from latebloom.lm.seal import damage_of_result
from latebloom.lm.sizes import check_fit, longest_context
from latebloom.lm.tokenizer import FILE, read_tokenizer
from latebloom.lm.traces import KINDS as PROBES
from latebloom.lm.windows import scored_windows, window_batch
from latebloom.lm.work import Work
from latebloom.reading import read_json_file
from latebloom.report.statistics import mean_interval

WORSE = 0.02
"""A loss that is higher by more than this many nats is worse."""
HOLDS_AT = 0.9
"""The accuracy of a probe that counts as holding."""


@dataclass(frozen=True, kw_only=True)
class Evaluating:
    """What is measured."""

    context: Annotated[int, at_least(16)]
    """The training context, 1x."""
    multiples: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Lengths of context, in training contexts."""
    documents: Count = 64
    """Documents of the test split, with one window in each."""
    scored: Annotated[int, at_least(0)] = 0
    """Tokens at the end of each window that are scored; by default half of the training context, 128 at most."""
    probes: Annotated[int, at_least(0)] = 64
    """Probes of each kind at each length; 0 for none."""
    seed: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.multiples or min(self.multiples) < 1 or 1 not in self.multiples:
            raise ConfigError(f"multiples: {list(self.multiples)} must be whole numbers from 1 on, 1 among them")

    @property
    def contexts(self) -> list[int]:
        return sorted({self.context * multiple for multiple in self.multiples})

    @property
    def scored_tokens(self) -> int:
        return min(self.scored or 128, self.context // 2)


@dataclass(frozen=True)
class Trained:
    """A causal language model that was loaded."""

    model: Any
    folder: Path
    weights: str
    """Where its weights come from, and which of them are missing there."""
    settings: dict[str, Any]
    """The settings of its run; empty if it was not trained here."""


def load_trained(path: Path) -> Trained:
    """Return the causal language model of a run or of any folder that Transformers has saved."""
    need_transformers()
    settings: dict[str, Any] = {}
    folder = path
    if (path / "settings.json").exists() and not (path / "config.json").exists():
        settings = read_saved(path / "settings.json")
        if not (path / "result.json").exists():
            raise ConfigError(f"model: the run in {path} is not finished; repeat its command to continue it")
        if damaged := damage_of_result(path / "result.json"):
            raise CheckpointError(
                f"{path} is damaged: {damaged} is missing or was changed after training; repeat the command that "
                "trained it, which restores it from the last checkpoint if there is one"
            )
        folder = path / "model"
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"model: {path} holds no model: there is no config.json in it")
    try:
        kind = read_json_file(file, follow=True)["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"model: {file} is not the configuration of a Transformers model") from None
    choose_kernels(kind)
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        model, weights = load_model(folder, allow_large=True)
    except ConfigError as error:
        raise ConfigError(f"model: {str(error).removeprefix('inspect: ')}") from None
    if weights == RANDOM:
        raise ConfigError(f"model: there are no weights in {folder}; they are read from safetensors files")
    if type(model.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"model: {folder} holds a {type(model).__name__}, which is not a causal language model")
    return Trained(model, folder, weights, settings)


def check_tokenizer(folder: Path, corpus: Corpus) -> None:
    """Raise if the model's folder has another tokenizer than the corpus."""
    file = folder / FILE
    if file.exists() and hash_file(file) != corpus.tokenizer_hash:
        mine = read_tokenizer(folder)[0].get_vocab()
        if mine != read_tokenizer(corpus.folder)[0].get_vocab():
            raise ConfigError(
                f"tokenizer: {corpus.folder} was not made with the tokenizer of {folder}; prepare one with: "
                f"latebloom lm prepare TEXT --tokenizer {folder}"
            )


def evaluate(model: Any, corpus: Corpus, settings: Evaluating, work: Work | None = None) -> dict[str, Any]:
    """Return losses, probes, reach and horizon as plain data."""
    work = work or Work()
    longest = longest_context(model)
    contexts = [one for one in settings.contexts if longest is None or one <= longest]
    check_fit(model, corpus.vocabulary, settings.contexts[0])
    last = LastTokens(model)
    tokens, scored = corpus.split("test"), settings.scored_tokens
    windows = scored_windows(corpus, "test", contexts[-1], scored, settings.documents, settings.seed)
    steps = len(contexts) * (1 + len(PROBES) * bool(settings.probes))
    work.begin("evaluating", steps)
    tokenizer = read_tokenizer(corpus.folder)[0]
    told = TokenKinds(tokenizer)
    full = window_batch(tokens, windows, contexts[-1])
    kinds = np.stack([told.of(row.tolist(), scored, settings.context) for row in full])
    losses: dict[int, np.ndarray] = {}
    for context in contexts:
        losses[context] = last_losses(last, full[:, -context:], scored).double().numpy()
        if not np.isfinite(losses[context]).all():
            raise ConfigError(f"model: its loss is not finite at a context of {context} tokens")
        work.advance(1, note=f"loss at {context} tokens: {losses[context].mean():.3f}")
    counts = []
    if settings.probes:
        prober = Prober(tokenizer, tokens, settings.seed)
        for kind in PROBES:
            for context in contexts:
                try:
                    counts.append(prober.count(last, kind, context, settings.probes))
                    note = f"{kind} at {context} tokens: {counts[-1].accuracy:.0%}"
                except TooShort:
                    note = f"{kind} does not fit into {context} tokens"
                work.advance(1, note=note)
    by_document = {context: found.mean(axis=1) for context, found in losses.items()}
    return {
        "training_context": settings.context,
        "contexts": contexts,
        "left_out": [one for one in settings.contexts if one not in contexts],
        "scored_tokens": scored,
        "documents": len(windows),
        "documents_inside": sum(one.inside for one in windows),
        "corpus_hash": corpus.hash,
        "in_pieces": contexts[-1] > last.piece and last.in_pieces,
        "loss": {str(context): _estimate(values) for context, values in by_document.items()},
        "loss_against_1x": {
            str(context): _estimate(values - by_document[settings.context]) for context, values in by_document.items()
        },
        "loss_of_documents": {str(context): values.tolist() for context, values in by_document.items()},
        "kinds": _by_kind(losses, kinds),
        "probes": [
            {
                "kind": one.kind,
                "context": one.context,
                "outcomes": list(one.outcomes),
                "accuracy": one.accuracy,
                "interval": list(one.interval),
                "guessing": one.guessing,
            }
            for one in counts
        ],
        "reach": reach(by_document, settings.context),
        "probe_reach": {kind: probe_reach([c for c in counts if c.kind == kind], settings.context) for kind in PROBES},
        "horizon": _horizon(model),
    }


def _estimate(values: np.ndarray) -> dict[str, Any]:
    """Return the mean over documents with its 95% bootstrap interval."""
    found = mean_interval(values.tolist())
    return {"mean": found.mean, "low": found.low, "high": found.high}


def _by_kind(losses: dict[int, np.ndarray], kinds: np.ndarray) -> list[dict[str, Any]]:
    """Return the loss of each kind of token by context, with an interval over the documents that have it."""
    rows = []
    for index, name in enumerate(KINDS):
        chosen = kinds == index
        has = chosen.any(axis=1)
        if not has.any():
            continue
        for context, found in losses.items():
            means = (found * chosen).sum(axis=1)[has] / chosen.sum(axis=1)[has]
            rows.append({"kind": name, "context": context, "tokens": int(chosen.sum()), **_estimate(means)})
    return rows


def reach(by_document: dict[int, np.ndarray], context: int) -> float:
    """Return the longest context, in training contexts, up to which the mean loss is nowhere worse than at 1x."""
    held = 0.0
    for one in sorted(by_document):
        if by_document[one].mean() > by_document[context].mean() + WORSE:
            break
        held = one / context
    return held


def probe_reach(counts: Sequence[Any], context: int) -> float:
    """Return the longest context, in training contexts, up to which a probe holds at every tested length."""
    held = 0.0
    for one in sorted(counts, key=lambda count: count.context):
        if one.accuracy < HOLDS_AT:
            break
        held = one.context / context
    return held


def _horizon(model: Any) -> dict[str, Any]:
    """Return how far a token is remembered with attention disabled, or why that is not known."""
    from latebloom.probes.horizon import memory_horizon

    try:
        found = memory_horizon(model)
    except LatebloomError as error:
        return {"tokens": None, "about": str(error)}
    return {"tokens": found.tokens, "is_open": found.is_open, "about": str(found)}
