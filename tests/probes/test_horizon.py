"""The memory horizon, of models whose horizon is known."""

from typing import Any

import pytest
import torch
from families import FAMILIES, build
from torch import Tensor, nn

from latebloom import SequenceModel, hybrid, transformer
from latebloom.errors import ConfigError
from latebloom.probes.horizon import Horizon, influence, memory_horizon


class Convolutions(nn.Module):
    """Causal convolutions in a row: layers * (kernel - 1) is as far as they reach, and no farther."""

    def __init__(self, kernel: int, layers: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Conv1d(8, 8, kernel) for _ in range(layers))
        for layer in self.layers:
            nn.init.normal_(layer.weight)  # type: ignore[arg-type] (a Linear's)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(nn.functional.pad(x, (self.kernel - 1, 0)))
        return x.transpose(1, 2)


@pytest.mark.parametrize("kernel", [1, 2, 5])
@pytest.mark.parametrize("layers", [1, 3])
def test_convolutions_are_felt_exactly_as_far_as_their_kernels_reach(kernel, layers):
    torch.manual_seed(kernel)
    horizon = memory_horizon(Convolutions(kernel, layers), length=40)
    assert horizon.tokens == layers * (kernel - 1)
    assert not any(horizon.curve[horizon.tokens + 1 :])
    assert not horizon.is_open


def test_a_convolution_hybrid_of_transformers_is_felt_as_far_as_its_kernels_reach():
    model = build("lfm2", conv_L_cache=4)
    for name, module in model.named_modules():
        if name.endswith("conv.conv"):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
    assert memory_horizon(model).tokens == 2 * (4 - 1)


def test_a_change_that_is_rounding_counts_as_none():
    outputs = torch.ones(2, 3, 4, dtype=torch.float64)
    outputs[1, :, 0] += torch.tensor([1e-8, 1e-3, 0.0])
    assert influence(outputs).tolist() == [0.0, pytest.approx(5e-4, rel=1e-2), 0.0]
    outputs[1, 2, 0] = torch.nan
    assert influence(outputs).isnan().all()


def test_with_nothing_left_that_mixes_a_token_is_felt_nowhere_else():
    for model in (SequenceModel(transformer(width=8, blocks=2, heads=2), 11), build("llama")):
        horizon = memory_horizon(model)
        assert horizon.tokens == 0
        assert horizon.curve[0] > 0
        assert not any(horizon.curve[1:])
        assert "at no later position (at most 0e+00" in str(horizon)


def test_attention_that_is_not_left_out_is_felt_to_the_end():
    """The oracle of the opposite: the same model with attention in two of its layers sees every token."""
    torch.manual_seed(0)
    model = SequenceModel(transformer(width=8, blocks=2, heads=2), 11)
    horizon = memory_horizon(model, where=["blocks.0.0"], length=20)
    assert horizon.tokens == 19
    assert horizon.is_open
    assert "the largest tested distance" in str(horizon)


def logits(model: Any, tokens: Tensor) -> Tensor:
    is_own = isinstance(model, SequenceModel)
    with torch.no_grad():
        return model(tokens) if is_own else model(input_ids=tokens, use_cache=False).logits


@pytest.mark.parametrize("family", ["latebloom", *FAMILIES])
def test_hybrids_have_a_horizon_and_are_left_as_they_were(family):
    torch.manual_seed(0)
    model = SequenceModel(hybrid(width=16, blocks=2, heads=2), 64) if family == "latebloom" else build(family)
    model.eval()
    next(module for module in model.modules() if not list(module.children())).train()  # a mode of its own
    tokens = torch.arange(24).reshape(2, 12)
    before, weights = logits(model, tokens), {n: p.clone() for n, p in model.state_dict().items()}
    modes, randomness = [module.training for module in model.modules()], torch.get_rng_state()
    horizon = memory_horizon(model)
    assert 0 <= horizon.tokens <= 127
    assert len(horizon.curve) == 128
    assert horizon == memory_horizon(model)
    assert torch.equal(logits(model, tokens), before)
    assert all(torch.equal(p, weights[n]) for n, p in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), randomness)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_the_length_is_bounded_by_the_positions_of_the_model():
    assert len(memory_horizon(build("bamba", max_position_embeddings=16)).curve) == 16


def test_an_example_says_how_a_model_of_another_kind_is_called():
    class Named(nn.Module):
        def __init__(self, kernel: int, layers: int) -> None:
            super().__init__()
            self.inner = Convolutions(kernel, layers)

        def forward(self, *, words: Tensor, scale: float) -> tuple[Tensor, None]:
            return self.inner(words) * scale, None

    torch.manual_seed(0)
    example = {"words": torch.zeros(1, 5, dtype=torch.long), "scale": 2.0}
    assert memory_horizon(Named(3, 2), example=example, length=12).tokens == 4
    with pytest.raises(ConfigError, match="example: none of scale holds tokens"):
        memory_horizon(Named(3, 2), example={"scale": 2.0})


def test_what_cannot_be_measured_is_an_error_with_the_reason():
    with pytest.raises(ConfigError, match="Linear has no token embedding"):
        memory_horizon(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"threshold: 2\.0 is not possible"):
        memory_horizon(Convolutions(2, 1), threshold=2.0)
    patched = Convolutions(2, 1)
    patched.forward = patched.forward
    with pytest.raises(ConfigError, match="the forward of Convolutions was replaced"):
        memory_horizon(patched)


def test_the_horizon_is_the_last_distance_that_counts():
    assert Horizon((1.0, 0.0, 0.5, 1e-4), 1e-3, 1).tokens == 2
    assert Horizon((0.0, 0.0), 1e-3, 1).tokens == 0
    assert "up to 1 token later, of 3 tested" in str(Horizon((1.0, 0.5, 0.0, 0.0), 1e-3, 1))
    assert "at most 1e-04" in str(Horizon((1.0, 1e-4), 1e-3, 1))
