"""Train tiny hybrids of flash-linear-attention with a delay, and print as JSON what happened to each.

    PYTHONPATH=.venv/fla:tests/delay/stand_ins TRITON_INTERPRET=1 python tests/integrations/fla_hybrids.py gla retnet

Its kernels run in Triton's interpreter, and flash-attn is a stand-in. The process is separate, because Transformers'
delta-rule models take fla's kernels where they can be imported.
"""

import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from latebloom import DelayedAttention, at_step
from latebloom.delay.find import look_at_names

TOKENS = torch.arange(10).view(2, 5)
COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_heads": 1,
    "max_position_embeddings": 64,
    "attn": {"layers": [1], "num_heads": 2, "num_kv_heads": 1},
}
FAMILIES = ("delta_net", "gated_deltanet", "gla", "kda", "retnet", "rwkv7", "samba")
LOW_RANKS = dict.fromkeys((f"{name}_low_rank_dim" for name in ("decay", "gate", "a", "v")), 8)
SETTINGS: dict[str, dict[str, Any]] = {
    "gated_deltanet": {"head_dim": 16},
    "kda": {"head_dim": 16},
    "rwkv7": {"head_dim": 16, **LOW_RANKS},
    "samba": {"state_size": 8},
}


def tensors_in(*bounds: Any) -> Iterator[Any]:
    """`range` for kernels in the interpreter: compiled, the index of a loop is a tensor."""
    import triton.language as tl

    for index in range(*bounds):
        yield tl.full((), index, tl.int32) if any(isinstance(bound, tl.tensor) for bound in bounds) else index


def prepare() -> None:
    """Import fla, and make its kernels run in the interpreter."""
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = lambda *_, **__: [0.0] * 3  # measuring needs a GPU
    from fla.layers.attn import Attention  # pyright: ignore[reportMissingImports]

    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            vars(module)["range"] = tensors_in
    forward = Attention.forward

    def with_first_value(self: Any, *args: Any, **options: Any) -> Any:
        # fla 0.6.0's RWKV-7 expects the value of the first layer as a fourth result, which its attention leaves out.
        output = forward(self, *args, **options)
        return (*output, options["v_first"]) if "v_first" in options else output

    Attention.forward = with_first_value


def build(family: str, seed: int = 0) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**COMMON, **SETTINGS.get(family, {})))


def logits_of(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits


def train(family: str) -> dict[str, Any]:
    """Train for two steps during a delay and two after it; return what was found and what happened."""
    model, plain = build(family), build(family, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    start, still = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}, []
    twin = copy.deepcopy(model)
    is_copy_right = torch.equal(logits_of(twin), logits_of(model))
    for _ in range(4):
        model.train()
        logits = model(input_ids=TOKENS, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), TOKENS.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        still.append([name for name, parameter in model.named_parameters() if torch.equal(parameter, start[name])])
    plain.load_state_dict(twin.state_dict())
    is_copy_right &= torch.equal(logits_of(twin), logits_of(plain))
    delay.remove()
    plain.load_state_dict(model.state_dict())
    return {
        "model": type(model).__name__,
        "attention": delay.found.matched,
        "others": list(delay.found.passed_over),
        "by_names": look_at_names(model).matched,
        "paths": [path for paths in delay.found.held.values() for path in paths],
        "held": list(delay.parameters()),
        "parameters": sum(parameter.numel() for parameter in delay.parameters().values()),
        "still": still,
        "copy": is_copy_right,
        "removed": torch.equal(logits_of(model), logits_of(plain)),
    }


def in_own_process(*families: str) -> dict[str, Any]:
    """Return what `train` returns for each family, from a process that can import fla."""
    tests = Path(__file__).parents[1]
    paths = [Path(sys.prefix) / "fla", tests / "delay" / "stand_ins", tests.parent / "src"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, __file__, *families], env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    prepare()
    print(json.dumps({family: train(family) for family in sys.argv[1:]}))
