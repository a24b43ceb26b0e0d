"""A language model as a run of a study: its configuration, and its training and test in the folder of a run."""

import os
import shutil
import site
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from latebloom.config import OtherRun, short_hash
from latebloom.delay.bypass import bypass_attention
from latebloom.engine.folder import RunFolder
from latebloom.engine.lock import locked, wait_until_free
from latebloom.engine.outcome import Progress
from latebloom.errors import CheckpointError, ConfigError
from latebloom.evaluation.accuracy import Count as Right
from latebloom.evaluation.result import Evaluation
from latebloom.fields import Count, Positive, at_least, check_fields
from latebloom.lm.corpus import MANIFEST, Corpus
from latebloom.lm.evaluate import Evaluating, evaluate, load_trained
from latebloom.lm.prepare import Preparing, TraceShare, prepare
from latebloom.lm.sizes import read_model_config
from latebloom.lm.train import METRICS, MODEL, Training, train
from latebloom.lm.work import Work

LONGEST_WAIT = 3600.0
"""Seconds for which a run waits until another process has made the corpus."""
TEXT = "LATEBLOOM_TEXT"
"""The environment variable that names another folder of text than this Python's library and packages."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """The corpus: source code of this machine's Python, its standard library and packages, split by package."""

    name: str = "python source"
    vocabulary: Count = 4096
    traces: TraceShare = 0.15
    """The share of traces in the training text."""
    at_most: Annotated[int, at_least(0)] = 0
    """Bytes of text; of more, files are drawn at random. 0 for all."""
    answers: tuple[str, ...] = ()
    """Tasks of the engine name what they ask for here."""

    def corpus(self, study: Path) -> Corpus:
        """Return the corpus of a study, which the first run makes."""
        settings = Preparing(
            vocabulary=self.vocabulary,
            traces=self.traces,
            at_most=self.at_most,
            include=("*.py",),
            validation=0.05,
            test=0.1,
        )
        folder = study / "corpora" / short_hash([self.vocabulary, self.traces, self.at_most])
        if not (folder / MANIFEST).exists():
            prepare(text_folders(), folder, settings)
        return Corpus.load(folder)


def text_folders() -> list[Path]:
    """Return the folders of Python's library and packages, or the one that the environment names."""
    if named := os.environ.get(TEXT):
        return [Path(named)]
    folders = [sysconfig.get_paths()["stdlib"], *site.getsitepackages()]
    return list(dict.fromkeys(Path(one) for one in folders if Path(one).is_dir()))


@dataclass(frozen=True, kw_only=True)
class LanguageTraining:
    """How the model is trained; see `latebloom.lm.train.Training` for the fields."""

    length: Annotated[int, at_least(8)]
    """Tokens of a training window."""
    batch: Count
    steps: Count
    learning_rate: Positive
    until: str | None = None
    without_attention: bool = False
    random_windows: bool = False
    bf16: bool = False
    watch: tuple[float, ...] = ()
    """Runs of the engine name other lengths to watch here."""


@dataclass(frozen=True, kw_only=True)
class LanguageTest:
    """How the trained model is tested."""

    multiples: tuple[int, ...] = (1, 2, 4, 8, 16)
    documents: Count = 64
    probes: Count = 64
    """Of each kind, at each length."""


@dataclass(frozen=True, kw_only=True)
class LanguageRun(OtherRun):
    """Everything that defines a run of a language model in a study."""

    kind: ClassVar[str] = "language"
    preload: ClassVar[tuple[str, ...]] = ("transformers.trainer", "latebloom.lm.language")
    model: str
    """A named size, a configuration as JSON, or a type of Transformers."""
    training: LanguageTraining
    task: Text = field(default_factory=Text)
    evaluation: LanguageTest = field(default_factory=LanguageTest)
    seed: int = 0
    delay: None = None
    """Runs of the engine have their delay here; this one's is `training.until`."""

    def __post_init__(self) -> None:
        for one in (self, self.training, self.task, self.evaluation):
            check_fields(one)

    @property
    def test_lengths(self) -> list[int]:
        return [multiple * self.training.length for multiple in self.evaluation.multiples]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        try:
            parts = {"training": LanguageTraining, "task": Text, "evaluation": LanguageTest}
            made = {name: part(**_tuples(data[name])) for name, part in parts.items()}
            return cls(model=data["model"], seed=data["seed"], **made)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"config: it is not the run of a language model ({error})") from None

    def train(self, folder: Path, study: Path, device: str, observe: Callable[[Any], None]) -> None:
        """Train and test the run in its folder, or continue it; what only training needs is removed at the end."""
        place = RunFolder(folder)
        with place.opened(self, device):  # type: ignore[arg-type] (it has what a folder asks of a RunConfig)
            if place.is_finished:
                return
            corpus = self._corpus(study)
            result = train(self.settings(corpus), folder / "lm", work=_Told(self.training.steps, observe))
            result = {name: value for name, value in result.items() if name not in ("digests", "digest")}
            tests = Evaluating(
                context=self.training.length,
                multiples=self.evaluation.multiples,
                documents=self.evaluation.documents,
                probes=self.evaluation.probes,
            )
            observe(Progress(self.training.steps, self.training.steps, "testing"))
            model = load_trained(folder / "lm").model.to(device)
            if self.training.without_attention:
                bypass_attention(model)
            tested = to_evaluation(evaluate(model, corpus, tests))
            shutil.copyfile(folder / "lm" / METRICS, place.metrics_file)
            files = {name: (folder / "lm" / MODEL / name).read_bytes() for name in ("config.json", "model.safetensors")}
            more = {"config_hash": self.hash, "corpus_hash": corpus.hash, "stacked": 1, "manifest": True}
            place.write_result(files, tested, result | more)
            shutil.rmtree(folder / "lm")
        observe(Progress(self.training.steps, self.training.steps, "done", tested=1.0))

    def _corpus(self, study: Path) -> Corpus:
        folder, busy = study / "corpora", "another process makes the corpus"
        while True:  # one process makes it, the others wait
            wait_until_free([folder], LONGEST_WAIT)
            try:
                with locked(folder, busy):
                    return self.task.corpus(study)
            except CheckpointError as error:
                if str(error) != busy:
                    raise

    def settings(self, corpus: Corpus) -> Training:
        """Return the settings of training on a corpus."""
        given = self.training
        return Training(
            model=read_model_config(self.model, [], corpus.vocabulary, corpus.end_token),
            corpus=str(corpus.folder.resolve()),
            context=given.length,
            batch=given.batch,
            steps=given.steps,
            learning_rate=given.learning_rate,
            until=given.until,
            without_attention=given.without_attention,
            random_windows=given.random_windows,
            bf16=given.bf16,
            seed=self.seed,
            log_every=max(1, given.steps // 100),
            save_every=max(1, given.steps // 4),
        )


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def to_evaluation(found: dict[str, Any]) -> Evaluation:
    """Return losses and probes by context as an evaluation: probe `i` of each kind is an answer of sequence `i`.

    A kind of probe that does not fit into the shortest context is left out.
    """
    by_kind: dict[str, dict[int, list[int]]] = {}
    guessing: dict[str, float] = {}
    for one in found["probes"]:
        by_kind.setdefault(one["kind"], {})[one["context"]] = one["outcomes"]
        guessing[one["kind"]] = one["guessing"]
    contexts = found["contexts"]
    asked = {kind: outcomes for kind, outcomes in by_kind.items() if set(outcomes) == set(contexts)}
    counts = []
    for context in contexts:
        rows = list(zip(*(asked[kind][context] for kind in asked), strict=True))
        right = {kind: sum(outcomes[context]) for kind, outcomes in asked.items()}
        counts.append(Right(context, max(1, len(rows)), sum(map(all, rows)), right, {}))
    chance = {kind: guessing[kind] for kind in asked}
    one = Evaluation.of(found["training_context"], tuple(counts), chance)
    losses = {context: found["loss"][str(context)]["mean"] for context in contexts}
    return Evaluation(one.training_length, one.counts, one.chance, one.chance_all, losses)


class _Told(Work):
    """Passes the steps of training on to the progress of a study."""

    def __init__(self, steps: int, observe: Callable[[Any], None]) -> None:
        super().__init__()
        self.steps, self.observe, self.done = steps, observe, 0

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        self.done += amount
        if amount and self.done % max(1, self.steps // 50) == 0:
            self.observe(Progress(self.done, self.steps, "full"))
