"""Which part of the sum is lost on long sequences: adding the digits, or holding their sum over the pairs that follow?

    python docs/adding_and_holding.py --seeds 4

Trains the arm `dat` of the study `holding`, and asks it for the sum of any number of digits before any number of pairs.
Stopped and started again, it goes on where it was. `python docs/results_tables.py` then writes the table.
"""

from dataclasses import replace
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

from latebloom.studies.holding import holding
from latebloom.studies.local import run_all
from latebloom.tasks import Composite
from latebloom.tasks.counter import fold
from latebloom.tasks.pieces import constant, draw_digits, draw_pairs
from latebloom.training.checkpoint import write_json
from latebloom.training.environment import describe_environment
from latebloom.training.loop import Progress

DIGITS, PAIRS = (13, 50, 100, 200), (12, 50, 100, 200)
"""The training length has 13 digits and 12 pairs, sixteen times that has 200 of each."""


@torch.inference_mode()
def sum_accuracy(model: nn.Module, task: Composite, digits: int, pairs: int, sequences: int) -> tuple[float, float]:
    """How often the sum is right at the last digit, and after the pairs, when it is asked for."""
    rows = torch.arange(sequences)
    key = fold(0xAD0, digits, pairs)
    added, sums = draw_digits(key, rows, digits, task.modulus)
    keys, values, _, _ = draw_pairs(key, rows, pairs, task.vocabulary)
    tokens = torch.cat(
        [added, torch.stack([keys, values], dim=2).flatten(1), constant(rows, task.vocabulary.marker("SUM"))], dim=1
    )
    positions = torch.tensor([digits - 1, tokens.shape[1] - 1]).expand(sequences, 2)

    def right(tokens: Tensor, positions: Tensor) -> Tensor:
        return model(tokens, positions).argmax(dim=-1)

    said = torch.cat([right(*some) for some in zip(tokens.split(64), positions.split(64), strict=True)])
    at_digit, at_end = (said == sums[:, -1:]).double().mean(dim=0).tolist()
    return at_digit, at_end


def main(
    seeds: int = 4,
    sequences: int = 1024,
    out: Path = Path("runs/adding-and-holding"),
    results: Path = Path("results/adding-and-holding.json"),
) -> None:
    """Train seeds 0, 1, ... on every core, and measure each."""
    run = next(arm.config for arm in holding("paper").arms if arm.name == "dat")
    configs = {f"seed-{seed}": replace(run, seed=seed) for seed in range(seeds)}

    def tell(name: str, seen: Progress) -> None:
        if seen.phase == "done" or seen.step % 1000 == 0:
            print(f"{name}: step {seen.step}/{seen.steps}, {seen.phase}", flush=True)

    trained = run_all(configs, out, observe=tell, device="cpu")
    found = []
    for seed, one in enumerate(trained.values()):
        assert isinstance(run.task, Composite)
        for digits in DIGITS:
            for pairs in PAIRS:
                at_digit, at_end = sum_accuracy(one.model, run.task, digits, pairs, sequences)
                found.append(
                    {"seed": seed, "digits": digits, "pairs": pairs, "at last digit": at_digit, "asked": at_end}
                )
                print(found[-1], flush=True)
    where = {key: value for key, value in describe_environment(0, "cpu").items() if key not in ("seed", "command")}
    results.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        results,
        {
            "command": f"python docs/adding_and_holding.py --seeds {seeds} --sequences {sequences}",
            "environment": where,
            "config": run.to_json(),
            "found": found,
        },
    )


if __name__ == "__main__":
    tyro.cli(main)
