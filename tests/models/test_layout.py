"""Layouts: serial, side by side and interleaved blocks, their mistakes, and the delay of attention beside others."""

from dataclasses import replace

import pytest
import torch

from latebloom import DelayedAttention, RunConfig, SequenceModel, at_step, inspect
from latebloom.config import with_overrides
from latebloom.dry_run import describe_run
from latebloom.engine.backend import parameters_by_role
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.models.block import residual_parts
from latebloom.models.layout import parse_layout
from latebloom.models.settings import Attention, Model

CPU = torch.device("cpu")


def build(layout: str, blocks: int = 2) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(Model(layout=layout, width=16, blocks=blocks, attention=Attention(heads=2)), 20)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("ram", [("r", "a", "m")]),
        ("(ra)m", [("ra", "m")]),
        ("rm rm am", [("r", "m"), ("r", "m"), ("a", "m")]),
        ("r(am) (ram)", [("r", "am"), ("ram",)]),
    ],
)
def test_a_layout_is_blocks_of_parts(text, blocks):
    assert list(parse_layout(text)) == blocks


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", 1, "the block has no parts"),
        ("rxm", 2, "'x' is none of r (recurrence), a (attention), m (MLP)"),
        ("rm aM", 5, "'M' is none of"),
        ("r(a", 2, "the parenthesis is never closed"),
        ("ra)m", 3, "nothing was opened"),
        ("(r(am))", 3, "parentheses inside others"),
        ("(r)m", 3, "parentheses hold two parts or more, not 1"),
        ("(rr)m", 3, "a second r in one pair of parentheses"),
        ("(r a)m", 3, "' ' is none of"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text, place, what):
    with pytest.raises(ConfigError) as caught:
        Model(layout=text)
    assert str(caught.value).startswith(f"layout: {text!r}, character {place}: {what}")
    assert str(caught.value).endswith("; write for example ram, (ra)m or rm rm rm am")


def test_a_layout_is_repeated_to_the_number_of_blocks():
    roles = [[part.role for part in block] for block in build("rm  am", blocks=4).blocks]  # type: ignore[union-attr]
    assert roles == [["recurrence", "MLP"], ["attention", "MLP"]] * 2
    with pytest.raises(ConfigError, match=r"blocks: 4 is not a multiple of the 3 blocks of layout 'rm rm am'"):
        Model(layout="rm rm am")


def test_parts_side_by_side_read_one_norm():
    model, x = build("(ra)m", blocks=1), torch.randn(2, 7, 16)
    both: torch.nn.Module = model.blocks[0][0]  # type: ignore[index]
    (recurrence,), (attention,) = residual_parts(model, "recurrence"), residual_parts(model, "attention")
    normed = both.norm(x)  # type: ignore[operator]
    torch.testing.assert_close(both(x), x + recurrence.body(normed)[0] + attention.body(normed))


def twin_without_attention(model: SequenceModel, layout: str) -> SequenceModel:
    """A model without the attention, whose other parts have the same weights."""
    twin = build(layout, model.settings.blocks)
    norms = {".0.0.branches.0.body": ".0.0.body", ".0.0.norm": ".0.0.norm", ".0.1.": ".0.1."}
    found = {}
    for name, value in model.state_dict().items():
        for block in range(model.settings.blocks):
            for ours, theirs in norms.items():
                name = name.replace(f"blocks.{block}{ours[2:]}", f"blocks.{block}{theirs[2:]}")
        if ".branches.1." not in name:
            found[name] = value
    twin.load_state_dict(found)
    return twin


@pytest.mark.parametrize("by", ["the engine", "hooks"])
def test_bypass_of_attention_beside_a_recurrence_is_exact_and_keeps_the_common_norm_in_training(by):
    model = build("(ra)m")
    twin, tokens = twin_without_attention(model, "rm"), torch.randint(20, (3, 9))
    held = {id(p) for part in residual_parts(model, "attention") for p in part.parameters()}
    if by == "the engine":
        for part in residual_parts(model, "attention"):
            part.gate = 0.0
        assert {id(p) for p in parameters_by_role(model)["attention"].values()} == held
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        delay = DelayedAttention(model, optimizer, until=at_step(3))
        assert {id(p) for p in delay.parameters().values()} == held
        assert delay.found.matched == ("blocks.0.0.branches.1", "blocks.1.0.branches.1")
    assert torch.equal(model(tokens), twin(tokens))
    model(tokens).square().sum().backward()
    twin(tokens).square().sum().backward()
    norm, same = model.blocks[0][0].norm, twin.blocks[0][0].norm  # type: ignore[index]
    assert torch.equal(norm.weight.grad, same.weight.grad)  # type: ignore[union-attr]
    assert all(p.grad is None for p in model.parameters() if id(p) in held)


def test_hooks_hold_attention_beside_a_recurrence_until_the_switch():
    model, tokens = build("(ra)m"), torch.randint(20, (3, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(3):
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
        same = {name: torch.equal(p, before[name]) for name, p in model.named_parameters()}
        assert all(same[name] == (step < 2) for name in delay.parameters())
        assert not same["blocks.0.0.norm.weight"]
    assert not delay.holding


@pytest.mark.parametrize("layout", ["(ra)m", "rm am", "(ram) (ra)m"])
@pytest.mark.parametrize("hold", ["bypass", "freeze", "ramp"])
def test_every_layout_trains_under_a_delay_alone_and_stacked(tiny, layout, hold):
    delay = replace(tiny.delay, until=at_step(2), hold=hold, ramp_steps=2 if hold == "ramp" else 0)
    config = replace(tiny, model=replace(tiny.model, layout=layout), delay=delay)
    alone, stacked = Trainer([config], CPU), Trainer([config, replace(config, seed=1)], CPU)
    before = {name: p.detach().clone() for name, p in alone.backend.template.named_parameters()}
    attention = set(parameters_by_role(alone.backend.template)["attention"])
    for step in range(4):
        alone.advance()
        stacked.advance()
        same = {name: torch.equal(p, before[name]) for name, p in alone.backend.model(0).named_parameters()}
        assert all(same[name] for name in attention) == (step < 2)
        assert not any(same[name] for name in same.keys() - attention)
    tokens = torch.randint(config.task.vocabulary_size, (3, 9))
    torch.testing.assert_close(alone.backend.model(0)(tokens), stacked.backend.model(0)(tokens), rtol=1e-3, atol=1e-4)


def test_a_delay_needs_a_recurrence_and_attention_somewhere_in_the_layout(tiny):
    for layout, words in (("am (am)", "mixes tokens with attention only"), ("rm rm", "has no attention to hold back")):
        with pytest.raises(ConfigError, match=words):
            replace(tiny, model=replace(tiny.model, layout=layout))


def test_inspect_and_dry_run_know_the_parts():
    rows = {row.path: row for row in inspect(build("(ra)m rm"), horizon=False).rows}
    assert rows["blocks.0.0.branches.1"].held
    assert rows["blocks.0.0.branches.1"].note == "has its own gate"
    assert rows["blocks.0.0.branches.0"].kind == rows["blocks.1.0"].kind == "recurrence"
    said = next(describe_run(with_overrides(RunConfig(), ["model.layout=(ra)m rm", "model.width=16"])))
    assert "Model: 4 blocks of recurrence beside attention, MLP; recurrence, MLP, width 16" in said
