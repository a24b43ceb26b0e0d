"""The study `language`: does delayed attention help a hybrid language model on real text?

Source code of Python's library and packages, split by package, with a share of traces. Two recurrences (the gated delta
rule with negative eigenvalues, Mamba-2), attention without positions and with rotary ones. The decision rule is that of
`latebloom trial`: a delay helps if the loss on the same tokens at 4x and beyond is lower, with an interval clear of
zero, while the loss at 1x is worse by less than 0.02 nats. A step with attention left out takes no longer than one with
it, so what holds at equal tokens holds at equal time.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from latebloom.lm.evaluate import WORSE
from latebloom.lm.language import LanguageRun, LanguageTest, LanguageTraining, Text
from latebloom.results.stated import Hypothesis, Level, LossChange
from latebloom.studies.plan import Arm, Plan, Scale, study

DELTA, DELTA_ROTARY = "gated delta rule, no positions", "gated delta rule, rotary"
MAMBA, MAMBA_ROTARY = "Mamba-2, no positions", "Mamba-2, rotary"
TRACES = "traces"
FAR = 4
"""The multiple of the training context from which on a delay should help."""
BUDGETS = {"1/4": 0.25, "1/2": 0.5}
"""Smaller budgets of tokens, beside the whole one."""
LONGER = 1.25
"""The steps of the delayed arm that is trained longer."""
SHARES = (0.15, 0.3, 0.5)
"""Shares of traces among which one is sought in which the recurrence alone learns to track state."""


@dataclass(frozen=True)
class Size:
    """A scale of the study."""

    width: int
    layers: int
    heads: int
    context: int
    batch: int
    steps: int
    rates: tuple[float, ...]
    thresholds: tuple[float, ...]
    """Held-out losses at 4x at which the trigger switches, tuned with the rate."""
    seeds: int
    text: Text
    tests: LanguageTest
    speed: float
    """Steps per second that are assumed for the cost."""
    bf16: bool = True


SIZES: dict[Scale, Size] = {
    "tiny": Size(
        16, 2, 1, 64, 2, 6, (3e-3, 1e-2), (9.0,), 2,
        Text(vocabulary=320, at_most=400_000), LanguageTest(multiples=(1, 4), documents=6, probes=3), 10.0, bf16=False,
    ),
    "paper": Size(
        256, 4, 4, 256, 64, 1000, (1e-3, 2e-3, 4e-3), (3.5, 2.5), 5,
        Text(at_most=200_000_000), LanguageTest(documents=128), 30.0,
    ),
    "large": Size(
        384, 8, 6, 512, 64, 4000, (1e-3, 2e-3, 4e-3), (3.0, 2.0), 5,
        Text(), LanguageTest(documents=128), 15.0,
    ),
}  # fmt: skip


@study("language")
def language(scale: Scale) -> Plan:
    """Language models on source code: joint, DAT at 10%, 30% and by trigger, stochastic windows, each part alone."""
    size = SIZES[scale]
    groups = {DELTA: delta(size, rotary=False), MAMBA_ROTARY: mamba(size, rotary=True)}
    if scale != "tiny":
        groups |= {DELTA_ROTARY: delta(size, rotary=True), MAMBA: mamba(size, rotary=False)}
    arms = [arm for group, model in groups.items() for arm in _main_arms(size, group, model)]
    arms += [*_parts_and_budgets(size, groups[DELTA]), *_trace_arms(size, groups[DELTA])]
    return Plan(
        arms,
        range(5000, 5000 + size.seeds),
        tuning_seeds=range(1000, 1001),
        finalists=1,
        hypotheses=_hypotheses(groups),
        speed=size.speed,
    )


def delta(size: Size, *, rotary: bool) -> dict[str, Any]:
    """Return an OLMo-Hybrid as the named sizes are, with or without positions."""
    return {
        **_shape(size),
        "model_type": "olmo_hybrid",
        "layer_types": ["linear_attention", "full_attention"] * (size.layers // 2),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0 if rotary else None},
        "linear_a_log_max": 1.0,
    }


def mamba(size: Size, *, rotary: bool) -> dict[str, Any]:
    """Return a dense Granite hybrid of Mamba-2 and attention, with or without positions."""
    heads = 2 * size.heads
    return {
        **_shape(size),
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"] * (size.layers // 2),
        "num_key_value_heads": size.heads,
        "num_local_experts": 0,
        "shared_intermediate_size": 3 * size.width,
        "mamba_n_heads": heads,
        "mamba_d_head": 2 * size.width // heads,
        "mamba_d_state": 64 if size.width > 64 else 16,
        "mamba_n_groups": 1,
        "position_embedding_type": "rope" if rotary else None,
    }


def transformer(size: Size) -> dict[str, Any]:
    """Return a Llama with rotary positions."""
    return {**_shape(size), "model_type": "llama", "num_key_value_heads": size.heads}


def _shape(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "intermediate_size": 3 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "tie_word_embeddings": True,
    }


def _run(size: Size, model: dict[str, Any], *, share: float = 1.0, text: Text | None = None, **training: Any) -> Any:
    """Return a run with a share of the steps; a study's machinery asks of it what it asks of a RunConfig."""
    steps = max(2, round(share * size.steps))
    settings = LanguageTraining(
        length=size.context,
        batch=size.batch,
        steps=steps,
        learning_rate=size.rates[0],
        bf16=size.bf16,
        **training,
    )
    return LanguageRun(model=json.dumps(model), training=settings, task=text or size.text, evaluation=size.tests)


def _arm(size: Size, group: str, name: str, run: Any, against: Sequence[str] = (), seeds: Sequence[int] = ()) -> Arm:
    """Return an arm with its rate tuned, and the threshold of its trigger with it."""
    until = run.training.until or ""
    triggers = [f"loss<{one:g}@{FAR}x" for one in size.thresholds] if until.startswith("loss") else [run.training.until]
    choices: list[Any] = [
        replace(run, training=replace(run.training, learning_rate=rate, until=one))
        for rate in size.rates
        for one in triggers
    ]
    tuned = tuple(choices) if len(choices) > 1 else ()
    return Arm(name, choices[0], tuned, group=group, seeds=seeds, against=tuple(against))


def _main_arms(size: Size, group: str, model: dict[str, Any]) -> list[Arm]:
    ways: dict[str, dict[str, Any]] = {
        "joint": {},
        "dat 10%": {"until": "10%"},
        "dat 30%": {"until": "30%"},
        "dat by trigger": {"until": f"loss<{size.thresholds[0]:g}@{FAR}x"},
        "stochastic windows": {"random_windows": True},
        "recurrence alone": {"without_attention": True},
    }
    return [
        _arm(size, group, name, _run(size, model, **way), () if name == "joint" else ["joint"])
        for name, way in ways.items()
    ]


def _parts_and_budgets(size: Size, model: dict[str, Any]) -> list[Arm]:
    """Return the Transformer, and joint training and DAT with fewer and more tokens."""
    arms = [_arm(size, DELTA, "Transformer", _run(size, transformer(size)), ["joint"])]
    for name, share in BUDGETS.items():
        arms.append(_arm(size, DELTA, f"joint, {name}", _run(size, model, share=share)))
        run = _run(size, model, share=share, until="10%")
        arms.append(_arm(size, DELTA, f"dat 10%, {name}", run, [f"joint, {name}"]))
    longer = _run(size, model, share=LONGER, until="10%")
    return [*arms, _arm(size, DELTA, "dat 10%, longer", longer, ["joint"])]


def _trace_arms(size: Size, model: dict[str, Any]) -> list[Arm]:
    """Return the recurrence alone with more and more traces, and both ways to train with the most."""
    seeds = range(5000, 5000 + max(size.seeds, 2 if size.seeds < 5 else 10))  # a share of seeds is judged from ten on
    arms = [
        _arm(
            size,
            TRACES,
            f"recurrence alone, {share:.0%}",
            _run(size, model, text=replace(size.text, traces=share), without_attention=True),
            seeds=seeds,
        )
        for share in SHARES
    ]
    most = replace(size.text, traces=SHARES[-1])
    arms.append(_arm(size, TRACES, "joint", _run(size, model, text=most)))
    arms.append(_arm(size, TRACES, "dat 10%", _run(size, model, text=most, until="10%"), ["joint"]))
    return arms


def _hypotheses(groups: Iterable[str]) -> list[Hypothesis]:
    rule = f"at 4x and beyond the interval of the change of loss lies above zero, or at 1x above {WORSE} nats."
    helps = [Hypothesis(f"DAT at 10% helps ({group}).", rule, _helps(group, "dat 10%")) for group in groups]
    shorter = tuple(f"joint, {name}" for name in BUDGETS)
    matched = [
        LossChange(task=DELTA, arm=arm, baseline="joint", at=FAR, beyond=True, matched=shorter)
        for arm in ("dat 10%", "dat 10%, longer")
    ]
    pairs = [("dat 10%", "joint"), *((f"dat 10%, {name}", f"joint, {name}") for name in BUDGETS)]
    return [
        *helps,
        Hypothesis(
            "It is the delay, not less-trained attention: DAT is ahead of joint training at equal loss at 1x.",
            "at 4x and beyond the interval of the change of loss lies above zero, from joint training with as many "
            "tokens as give the same loss at 1x.",
            matched,
        ),
        Hypothesis(
            "More training does not close the gap: DAT is ahead at 4x and beyond with each of three budgets of tokens.",
            "the interval is above zero with one of them.",
            [LossChange(task=DELTA, arm=arm, baseline=other, at=FAR, beyond=True) for arm, other in pairs],
        ),
        Hypothesis(
            "DAT is ahead of stochastic windows at 4x and beyond.",
            "the interval is above zero.",
            [LossChange(task=DELTA, arm="dat 10%", baseline="stochastic windows", at=FAR, beyond=True)],
        ),
        Hypothesis(
            "With half of the text as traces the recurrence alone learns to track swaps at 1x.",
            "fewer than 8 of 10 seeds answer 90% of the swaps.",
            [Level(task=TRACES, arm=f"recurrence alone, {SHARES[-1]:.0%}", at=1, least=0.8, answer="swaps")],
        ),
    ]


def _helps(group: str, arm: str) -> list[LossChange]:
    return [
        LossChange(task=group, arm=arm, baseline="joint", at=FAR, beyond=True),
        LossChange(task=group, arm=arm, baseline="joint", at=1, below=WORSE),
    ]
