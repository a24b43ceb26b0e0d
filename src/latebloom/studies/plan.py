"""Studies: arms to compare, each trained with the same seeds.

    @study("mine")
    def mine(scale: str) -> Plan:
        '''Whether a longer delay helps.'''
        return Plan(arms=(Arm("early", ...), Arm("late", ...)), seeds=range(10))

Run the studies in a file with `latebloom study my_file.py`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Literal, get_args

from latebloom.components import Component, define
from latebloom.config import OtherRun, RunConfig
from latebloom.errors import ConfigError, require, unknown
from latebloom.results.stated import Hypothesis, Stated
from latebloom.studies.arm import Arm, Axis, Round

Scale = Literal["tiny", "small", "paper", "large"]
SCALES: tuple[Scale, ...] = get_args(Scale)
WITHOUT_SMALL: tuple[Scale, ...] = ("tiny", "paper", "large")
__all__ = ["SCALES", "SPEED", "Arm", "Axis", "Plan", "Round", "Scale", "Stage", "Study", "describe_cost", "study"]

SPEED = 9_500.0
"""Steps per second of 64 stacked runs of width 64 with 25 tokens on an H200 (docs/performance.md)."""


@dataclass(frozen=True)
class Plan:
    """Arms, the seeds of their runs, and the held-out tuning seeds."""

    arms: Sequence[Arm]
    seeds: Sequence[int]
    tuning_seeds: Sequence[int] = ()
    """Held-out seeds on which every choice of an arm is trained."""
    second_round: Sequence[int] = ()
    """More held-out seeds for the best choices, because the best of many on few seeds is often a lucky one."""
    finalists: int = 3
    """The number of choices of each arm in the second round, if there is one."""
    rounds: Sequence[Round] = ()
    """Rounds of tuning that may stop runs early, instead of `tuning_seeds`, `second_round` and `finalists`."""
    hypotheses: Sequence[Hypothesis] = ()
    """What is expected, with the comparisons that decide it; the report prints them beside what was seen."""
    probed: bool = False
    """Whether the runs of the arms are probed at the end, so that the report says what attention does in them."""
    speed: float = SPEED
    """The steps per second, summed over stacked runs, for which the cost in GPU minutes is stated."""

    @property
    def tuning(self) -> tuple[Round, ...]:
        """The rounds of tuning, in whichever form they were given."""
        if not self.tuning_seeds:
            return tuple(self.rounds)
        first = Round(seeds=self.tuning_seeds, keep=self.finalists)
        return (first, Round(seeds=self.second_round)) if self.second_round else (first,)

    def __post_init__(self) -> None:
        require(isinstance(self.arms, Sequence), "arms", self.arms, "a list of Arm(name, config)")
        for arm in self.arms:
            if not isinstance(arm, Arm) or not isinstance(arm.config, RunConfig | OtherRun):
                raise ConfigError(f"the arms of a study must be Arm(name, config); {arm!r} is not")
        reported = [("seeds", self.seeds), *((f"arm {arm.name}: seeds", arm.seeds) for arm in self.arms)]
        self._check_rounds()
        held_out = [("tuning_seeds", self.tuning_seeds), ("second_round", self.second_round)]
        held_out += [(f"round {number}: seeds", one.seeds) for number, one in enumerate(self.rounds, start=1)]
        for what, seeds in (*reported, *held_out):
            is_valid = isinstance(seeds, Sequence) and all(type(seed) is int and seed >= 0 for seed in seeds)
            require(is_valid, what, seeds, "a list of whole numbers, such as range(3)")
            if len(set(seeds)) != len(seeds):
                raise ConfigError(f"{what}: a seed occurs twice; each seed is one run")
        if not self.arms or not self.seeds:
            raise ConfigError("a study has at least one arm and one seed")
        ((task, name), count), *_ = Counter((arm.task, arm.name) for arm in self.arms).most_common(1)
        if count > 1:
            raise ConfigError(f"two arms of a study are called {name} in {task}; names must be unique")
        for arm in self.arms:
            if arm.choices and not self.tuning:
                raise ConfigError(f"arm {arm.name}: choices need tuning_seeds or rounds")
            if arm.axis is not None:
                arm.axis.check(arm.name, arm.choices)
        self._check_against()
        for what, kept in held_out:
            if both := sorted({seed for _, seeds in reported for seed in seeds} & set(kept)):
                numbers = ", ".join(map(str, both))
                raise ConfigError(f"{what}: tuning must use seeds that the study does not report; in both: {numbers}")
        if set(self.tuning_seeds) & set(self.second_round):
            raise ConfigError("second_round: its seeds must differ from tuning_seeds")
        every = [seed for one in self.rounds for seed in one.seeds]
        if len(set(every)) != len(every):
            raise ConfigError("rounds: a seed is added twice; a round keeps the seeds of the rounds before it")
        if self.second_round:
            if not self.tuning_seeds:
                raise ConfigError("second_round: it needs a first round; give tuning_seeds too")
            require(self.finalists >= 1, "finalists", self.finalists, "1 or more")
        self._check_stated()

    def _check_rounds(self) -> None:
        """Raise unless every round does something that the one before did not, and the last goes to the end."""
        require(
            isinstance(self.rounds, Sequence) and all(isinstance(one, Round) for one in self.rounds),
            "rounds", self.rounds, "a list of Round(seeds=..., share=...)",
        )  # fmt: skip
        if not self.rounds:
            return
        if self.tuning_seeds or self.second_round:
            raise ConfigError("rounds: give either rounds or tuning_seeds and second_round, because both mean the same")
        if not self.rounds[0].seeds:
            raise ConfigError("round 1: seeds: the first round needs held-out seeds, such as range(100, 102)")
        share = 0.0
        if self.rounds[0].share < 1 and any(isinstance(arm.config, OtherRun) for arm in self.arms):
            raise ConfigError("round 1: share: language models are not paused; give rounds with a share of 1")
        for number, one in enumerate(self.rounds, start=1):
            require(0 < one.share <= 1, f"round {number}: share", one.share, "above 0 and at most 1")
            if one.share < share or (one.share == share and not one.seeds):
                raise ConfigError(
                    f"round {number}: share: {one.share:g} after {share:g}"
                    f"{' without more seeds' * (one.share == share)} is not possible; a round trains longer or on more "
                    "seeds than the one before"
                )
            require(one.keep is None or one.keep >= 1, f"round {number}: keep", one.keep, "1 or more")
            share = one.share
        require(share == 1, f"round {len(self.rounds)}: share", share, "1: what is chosen was trained to its end")

    def _check_against(self) -> None:
        """Raise unless `against` names existing arms, and every pair at most once."""
        pairs: set[frozenset[tuple[str, str]]] = set()
        for arm in self.arms:
            field = f"arm {arm.name}: against"
            if not isinstance(arm.against, str | tuple | list) or not all(isinstance(n, str) for n in arm.against):
                raise ConfigError(f"{field}: {arm.against!r} is neither the name of an arm nor a list of names")
            beside = {other.name: other for other in self.arms if other.task == arm.task and other is not arm}
            for name in arm.others:
                if name == arm.name:
                    raise ConfigError(f"{field}: an arm cannot be compared with itself")
                if not beside:
                    raise ConfigError(f"{field}: there is no {name}, nor any other arm, on {arm.task}")
                if name not in beside:
                    raise unknown(field, name, beside)
                length, other = arm.config.training.length, beside[name].config.training.length
                if length != other:
                    raise ConfigError(
                        f"{field}: it is trained up to length {length} and {name} up to {other}; "
                        "arms are compared at multiples of one length"
                    )
                if not self._shared_seeds(arm, beside[name]):
                    raise ConfigError(f"{field}: it shares no seed with {name}, and equal seeds are compared")
                pair = frozenset({(arm.task, arm.name), (arm.task, name)})
                if pair in pairs:
                    raise ConfigError(f"{field}: it is compared with {name} already")
                pairs.add(pair)

    def _check_stated(self) -> None:
        """Raise unless hypotheses and selections name existing arms and tested lengths."""
        arms = {(arm.task, arm.name): arm for arm in self.arms}
        selected = [arm for arm in self.arms if arm.best_of is not None]
        for arm in selected:
            assert arm.best_of is not None
            if arm.best_of.at not in arm.config.training.watch:
                raise ConfigError(
                    f"arm {arm.name}: best_of: held-out accuracy is not measured at {arm.best_of.at:g}x; set "
                    f"training.watch=[{arm.best_of.at:g}]"
                )
        arms |= {(arm.task, arm.best_of.name(arm.name)): arm for arm in selected if arm.best_of}
        for prediction in (one for hypothesis in self.hypotheses for one in hypothesis.predictions):
            for name in prediction.arms:
                if (prediction.task, name) not in arms:
                    choices = [f"{other} on {task}" for task, other in arms]
                    raise unknown("hypothesis", f"{name} on {prediction.task}", choices)
                config = arms[prediction.task, name].config
                if round(prediction.at * config.training.length) not in config.test_lengths:
                    raise ConfigError(
                        f"hypothesis: {name} on {prediction.task} is not tested at {prediction.at:g}x; add it to "
                        "evaluation.multiples"
                    )

    def stated(self, arm: Arm) -> str:
        """Return what the results of an arm keep of the plan, as text."""
        return Stated(tuple(self.hypotheses), arm.control, arm.best_of).to_text()

    @property
    def gpu_minutes(self) -> float:
        """The cost of all runs at `speed`, without their tests, if every round drops choices and no range is
        extended."""
        return self._minutes()

    @property
    def most_gpu_minutes(self) -> float:
        """The same if no round that ends early drops a choice, and every range is extended as far as it can be."""
        return self._minutes(most=True)

    def _minutes(self, most: bool = False) -> float:
        steps = 0.0
        for arm in self.arms:
            begun, going_on = self._tuning_steps_of(arm, most=most)
            reported = arm.config.training.steps * len(self.seeds_of(arm))
            steps += arm.cost * (reported + sum(begun) + going_on)
        return steps / self.speed / 60

    def seeds_of(self, arm: Arm) -> Sequence[int]:
        """Return the seeds of the runs of an arm."""
        return arm.seeds or self.seeds

    @property
    def shared_seeds(self) -> list[int]:
        """The number of common seeds of each pair of arms that is compared, if it is at least two.

        The pairs are within arms of one group and training length: those of `against`, or else all.
        """
        groups: dict[tuple[str, int], list[Arm]] = {}
        for arm in self.arms:
            groups.setdefault((arm.task, arm.config.training.length), []).append(arm)
        shared = []
        for arms in groups.values():
            named = [(arm, other) for arm in arms for other in arms if other.name in arm.others]
            shared += [self._shared_seeds(*pair) for pair in named or combinations(arms, 2)]
        return [seeds for seeds in shared if seeds > 1]

    def _shared_seeds(self, first: Arm, second: Arm) -> int:
        return len(set(self.seeds_of(first)) & set(self.seeds_of(second)))

    @property
    def run_count(self) -> int:
        """The number of runs that are reported."""
        return len(self.reported_steps)

    @property
    def tuning_count(self) -> int:
        """The number of runs for tuning, if no choice fails."""
        return sum(self.tuning_count_of(arm) for arm in self.arms)

    def tuning_count_of(self, arm: Arm) -> int:
        """Return the number of runs for tuning of an arm, if no choice fails."""
        return len(self._tuning_steps_of(arm)[0])

    def tuning_steps(self, after: int = 0, left: Mapping[tuple[str, str], int] | None = None) -> tuple[list[int], int]:
        """Return the steps of each run that begins after so many rounds, and the steps of those that go on then.

        `left` has the number of choices in the last of these rounds by task and arm, if it is known.
        """
        found = [self._tuning_steps_of(arm, after, (left or {}).get((arm.task, arm.name))) for arm in self.arms]
        return [steps for begun, _ in found for steps in begun], sum(going_on for _, going_on in found)

    def _tuning_steps_of(
        self, arm: Arm, after: int = 0, left: int | None = None, most: bool = False
    ) -> tuple[list[int], int]:
        """Return `tuning_steps` of one arm, if no choice fails.

        With `most`, no round that ends early drops a choice, and the range is extended as far as it can be.
        """
        begun: list[int] = []
        count, going_on, before, seeds = len(arm.choices), 0, 0, 0
        for number, one in enumerate(self.tuning):
            count = left if left is not None and number == after - 1 else count
            until = one.stop_step(arm.config)
            if number >= after:
                begun += [until] * (count * len(one.seeds))
                going_on += count * seeds * (until - before)
            before, seeds = until, seeds + len(one.seeds)
            count = count if most and one.share < 1 else one.kept(count)
        if most and arm.axis is not None:
            begun += [arm.config.training.steps] * (len((*arm.axis.below, *arm.axis.above)) * seeds)
        return begun, going_on

    @property
    def total_tuning_steps(self) -> int:
        """The seed-steps that tuning takes, if no choice fails."""
        begun, going_on = self.tuning_steps()
        return sum(begun) + going_on

    @property
    def most_tuning_steps(self) -> int:
        """The most seed-steps that tuning takes: no round that ends early drops a choice, and every range is extended
        as far as it can be."""
        found = [self._tuning_steps_of(arm, most=True) for arm in self.arms]
        return sum(sum(begun) + going_on for begun, going_on in found)

    @property
    def saved_by_rounds(self) -> int:
        """The seed-steps by which tuning is shorter than all choices on all of its seeds to the end, if none fails."""
        seeds = sum(len(one.seeds) for one in self.tuning)
        grid = sum(len(arm.choices) * seeds * arm.config.training.steps for arm in self.arms)
        return grid - self.total_tuning_steps

    @property
    def reported_steps(self) -> list[int]:
        """The steps of each run that is reported."""
        return [arm.config.training.steps for arm in self.arms for _ in self.seeds_of(arm)]


def describe_cost(plan: Plan) -> str:
    """Return the cost of a plan in GPU minutes, with the speed that it assumes; empty if it is below one minute."""
    minutes = plan.gpu_minutes
    if minutes < 1:
        return ""
    about = f"{minutes:.0f} GPU minutes" if minutes >= 10 else f"{minutes:.1f} GPU minutes"
    # Only runs of the engine are stacked; others, such as language models, are trained one after the other.
    of = "of all stacked runs" if all(isinstance(arm.config, RunConfig) for arm in plan.arms) else "of one run"
    text = (
        f"about {about} for {minutes * 60 * plan.speed:,.0f} steps, at an assumed {plan.speed:,.0f} steps per second "
        f"{of}, without tests"
    )
    if plan.most_gpu_minutes <= minutes:
        return text
    return f"{text}; at most {plan.most_gpu_minutes:.0f} if no round can drop a setting and every range is extended"


@dataclass(frozen=True)
class Stage:
    """The purpose of a set of runs of a study, and the runs after it."""

    purpose: str
    later: Sequence[int] = ()
    """The steps of each run that begins after this stage."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Labels for the folders of choices."""
    going_on: int = 0
    """The steps that runs of this stage and of earlier ones go on for after it."""
    note: str = ""
    """What the user should know of the choices so far."""


class Study(Component, ABC):
    """A named plan, for each of its scales."""

    scales: ClassVar[tuple[Scale, ...]] = WITHOUT_SMALL

    @abstractmethod
    def build(self, scale: Scale) -> Plan:
        """Return the plan at a scale."""


Function = Callable[[Scale], Plan]


def study(name: str, scales: tuple[Scale, ...] = WITHOUT_SMALL) -> Callable[[Function], Function]:
    """Register a function as a study with these scales; a decorator."""
    return define(Study, name, scales=scales)
