"""Train tiny hybrids of flash-linear-attention with a delay, and print as JSON what happened to each.

    PYTHONPATH=.venv/fla:tests/delay/stand_ins TRITON_INTERPRET=1 python tests/integrations/fla_hybrids.py gla retnet

Its kernels run in Triton's interpreter, and flash-attn is a stand-in. The process is separate, because Transformers'
delta-rule models take fla's kernels where they can be imported.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from latebloom import DelayedAttention, at_step

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


def train(family: str) -> dict[str, Any]:
    model = build(family).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    start, still = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}, []
    for _ in range(4):
        logits = model(input_ids=TOKENS, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), TOKENS.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        still.append([name for name, parameter in model.named_parameters() if torch.equal(parameter, start[name])])
    return {
        "attention": delay.found.matched,
        "others": list(delay.found.passed_over),
        "held": list(delay.parameters()),
        "still": still,
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    prepare()
    print(json.dumps({family: train(family) for family in sys.argv[1:]}))
