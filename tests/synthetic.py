"""Studies that nobody has run, made of the same records that real ones are collected into."""

import json
import random
from collections.abc import Mapping, Sequence

from latebloom import Evaluation
from latebloom.evaluation import Count
from latebloom.results.record import CurvePoint, RunRecord

LENGTHS = (10, 25, 30, 35, 50, 75, 100, 150, 200, 300, 400)
CHANCE = {"sum": 0.1, "recall": 1 / 64}
SEQUENCES = 1024


def evaluation(
    levels: Mapping[int, float], *, training_length: int = 25, sequences: int = 1000, recall: float = 1.0
) -> Evaluation:
    """All answers right at these levels, by length; the sum decides unless `recall` is less."""
    counts = tuple(
        Count(
            length,
            sequences,
            round(sequences * level),
            {"sum": round(sequences * level), "recall": max(round(sequences * level), round(sequences * recall))},
        )
        for length, level in levels.items()
    )
    return Evaluation(training_length, counts, CHANCE, CHANCE["sum"] * CHANCE["recall"])


def record(
    arm: str,
    seed: int,
    seen: Evaluation | None,
    *,
    study: str = "paper",
    task: str = "composite",
    switch_step: int | None = None,
    failure: str | None = None,
    curve: Sequence[CurvePoint] = (),
    training_length: int = 25,
) -> RunRecord:
    config = {"task": {"name": "composite", "modulus": 10}, "training": {"length": training_length}, "seed": seed}
    return RunRecord(
        study=study,
        task=task,
        arm=arm,
        seed=seed,
        training_length=training_length,
        evaluation=seen,
        failure=failure,
        switch_step=switch_step,
        steps=None if seen is None else 15_000,
        seconds=None if seen is None else 312.5 + seed,
        stacked=None if seen is None else 1,
        config=json.dumps(config),
        config_hash=f"{arm}-{seed}-hash",
        versions="latebloom 0.1.0, python 3.11.7, torch 2.13.0+cpu",
        machine="a processor, 2 cores, Linux",
        commit="0123456789abcdef",
        command=f"printf %s '{json.dumps(config)}' | latebloom train --config - --device cpu",
        curve=tuple(curve),
    )


def falling(top: float, floor: float, held: float) -> dict[int, float]:
    """`top` up to `held`, then down towards `floor`."""
    return {n: floor + (top - floor) * min(1.0, (held / n) ** 2) for n in LENGTHS}


def curve(rng: random.Random, end: float, end_beyond: float, switch: int | None) -> list[CurvePoint]:
    """A loss that falls and accuracies that rise, with a step at the switch."""
    points = [
        CurvePoint("loss", None, step, 3.0 * 0.96 ** (step / 150) + 0.01 + 0.02 * rng.random())
        for step in range(150, 15_001, 150)
    ]
    for step in range(500, 15_001, 500):
        grown = min(1.0, step / 6000)
        late = 1.0 if switch is None or step > switch else 0.0
        for length, best in ((25, end), (75, end_beyond)):
            state = max(0.1, best * grown)
            values = {"accuracy": state * late, "accuracy_sum": state, "accuracy_recall": late * grown}
            points += [CurvePoint(name, length, step, value) for name, value in values.items()]
    return points


ARMS = {
    # held to, floor, spread over seeds, switch
    "lstm": (500.0, 0.02, 0.01, None),
    "transformer": (28.0, 0.1, 0.02, None),
    "joint": (40.0, 0.15, 0.1, None),
    "dat": (180.0, 0.6, 0.03, 9_000),
}


def study(
    *, study: str = "paper", tasks: Sequence[str] = ("composite",), arms: Sequence[str] = tuple(ARMS), seeds: int = 5
) -> list[RunRecord]:
    """Four arms that differ as those of the paper are said to."""
    rng = random.Random(0)
    records = []
    for task in tasks:
        for place, arm in enumerate(arms):
            held, floor, spread, switch = ARMS.get(arm) or list(ARMS.values())[place % len(ARMS)]
            for seed in range(seeds):
                levels = falling(1.0 - spread * rng.random(), floor, held * (1 + spread * rng.uniform(-4, 4)))
                if arm == "lstm":
                    levels = {n: 0.1 * level for n, level in levels.items()}
                seen = evaluation(levels, sequences=SEQUENCES, recall=0.02 if arm == "lstm" else 1.0)
                points = curve(rng, levels[25], levels[75], switch)
                records.append(record(arm, seed, seen, study=study, task=task, switch_step=switch, curve=points))
    return records
