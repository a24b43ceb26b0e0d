"""DAT in torchtitan: the calls that its Trainer makes, on FSDP2 with compiled blocks; the Trainer needs a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard

from latebloom import at_step
from latebloom.errors import ConfigError
from latebloom.integrations.torchtitan import delayed_attention


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.convolution, self.mlp = nn.Conv1d(16, 16, 9, padding=8), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.convolution(x.mT)[..., : x.shape[1]].mT
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Optimizers:
    """As torchtitan's OptimizersContainer: flat state by name; a first save steps the optimizers to create it."""

    def __init__(self, model: nn.Module) -> None:
        self.names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)]

    def states(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        (optimizer,) = self.optimizers
        if not optimizer.state:
            for parameter in self.names:
                parameter.grad = torch.zeros_like(parameter)
            (group,) = optimizer.param_groups
            group["lr"], rate = 0.0, group["lr"]
            optimizer.step()
            optimizer.zero_grad()
            group["lr"] = rate
        for parameter, state in optimizer.state.items():
            for key in state:
                yield f"state.{self.names[parameter]}.{key}", state, key

    def state_dict(self) -> dict[str, Any]:
        return {name: state[key] for name, state, key in self.states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, state, key in self.states():
            state[key] = state_dict[name]


def train(folder: Path, start: int, stop: int) -> tuple[dict[str, Tensor], set[str], set[str]]:
    """Train from a checkpoint at `start` to one at `stop`; return the weights, the names that moved, and those held."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), Block(), nn.Linear(16, 20))
    model[1].compile(backend="aot_eager", fullgraph=True)
    for module in (model[1], model):
        fully_shard(module)
    optimizers = Optimizers(model)
    delay = delayed_attention(until=at_step(2))(optimizers, [model])
    states: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizers}
    if start:
        load(states, checkpoint_id=folder / str(start))
        model.load_state_dict(states["model"])
    assert delay.step == start

    def weights() -> dict[str, Tensor]:
        return {name: parameter.full_tensor().detach().clone() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]

    before = weights()
    for number in range(start, stop):
        torch.manual_seed(100 * number + dist.get_rank())
        tokens = torch.randint(20, (2, 9))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizers.optimizers[0].step()
        optimizers.optimizers[0].zero_grad()
    save({"model": model.state_dict(), "optimizer": optimizers}, checkpoint_id=folder / str(stop))
    after = weights()
    return after, {name for name in after if not torch.equal(after[name], before[name])}, set(delay.parameters())


def train_in_parts(folder: Path) -> tuple[Any, ...]:
    dist.init_process_group("gloo")
    parts = [train(folder, start, start + 1) for start in range(4)]
    return *parts, train(folder / "whole", 0, 4)


# Dynamo reads .grad of the tensors that it traces; DCP uses what torch has deprecated.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_two_processes_resume_at_every_step_and_agree_with_one_that_was_not_interrupted(tmp_path):
    for *parts, (whole, _, _) in run_ranks(train_in_parts, tmp_path):
        for number, (_, moved, held) in enumerate(parts):
            assert {name.partition(".")[2].partition(".")[0] for name in held} == {"attention", "norm"}
            assert moved == set(whole) - (held if number < 2 else set()), number
        assert all(torch.equal(value, whole[name]) for name, value in parts[-1][0].items())


def test_pipeline_stages_are_refused():
    with pytest.raises(ConfigError, match="this model has 2 pipeline stages"):
        delayed_attention(until=at_step(2))(None, [nn.Linear(1, 1), nn.Linear(1, 1)])
