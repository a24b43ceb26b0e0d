"""Find the hybrids among the causal language models of the installed Transformers, and build each small.

    python tests/integrations/discover.py             # a table of the models that may be hybrids
    python tests/integrations/discover.py zaya jamba  # of these alone
    python tests/integrations/discover.py all         # of every causal language model, in minutes

No family is named here. A model may be a hybrid if a field or a layer type of its configuration is about another mixer
than attention. It is one if `observe` sees both attention and another mixer in it.
"""

import importlib
import inspect
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import cycle, islice
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from latebloom.delay.find import look_at_names
from latebloom.delay.observe import Observation, observe

LAYERS = 4
LARGEST = 2_000_000
"""Parameters of the largest model that is built; a part of some composites keeps its usual size."""
TOKENS = torch.arange(2 * 8).view(2, 8) + 3
MIXERS = re.compile("mamba|ssm|conv_|linear_|lru|recurrent|hybrid|lstm|rwkv|time_step")
"""Words in the fields of a configuration, or in its layer types, that tell of another mixer than attention."""
SIZES = (
    (r"pad_token_id", 0),
    (r"bos_token_id|decoder_start_token_id", 1),
    (r"eos_token_id", 2),
    (r"token_(id|index)$", 2),
    (r"vocab_size", 64),
    (r"^(num_hidden_layers|n_layers?|num_layers|num_blocks|(num_)?(en|de)coder_layers)$", LAYERS),
    (r"(attn_layer_period|layer_group_size|full_attention_interval)$", 2),
    (r"attn_layer_offset$", 1),
    (r"max_window_layers", 2),
    (r"per_tok(en)?$|topk_group|moe_topk|n_groups?$|ngroups|num_expert_group|shared_experts$", 1),
    (r"experts$", 2),
    (r"indexer_kv_heads$", 1),
    (r"key_value_heads$|kv_heads$", 2),
    (r"heads?$", 4),
    (r"head_?dim|head_size|d_head", 16),
    (r"lora_rank|dt_rank|_rank$|state", 8),
    (r"window|budget", 4),
    (r"compress_ratio", 2),
    (r"chunk|block_size|mamba_d_ssm", 64),
    (r"positions|position_embeddings|seq_len|length|extent|index_topk$", 128),
    (r"intermediate_size|ffn|ff$|inner", 48),
    (r"hidden_size|d_model|n_embd|embedding_dim|emb_dim|embed_dim|lru_width|embedding_size", 32),
)
"""The value of a field by its name; the first match counts. Other numbers stay."""


@dataclass(frozen=True)
class Row:
    """What is known about one model."""

    family: str
    reason: str = ""
    """Why it could not be built, run or observed; empty if it could."""
    seen: Observation | None = None
    seconds: float = 0.0
    matched: tuple[str, ...] = ()
    """The attention by the names of its classes."""

    @property
    def is_hybrid(self) -> bool:
        return self.seen is not None and bool(self.seen.attention) and bool(self.seen.mixers)


def candidates(everything: bool = False) -> list[str]:
    """Return the model types of the causal language models that may be hybrids."""
    found = []
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        settings: Any = CONFIG_MAPPING[family]
        inner = settings.sub_configs.get("text_config")
        if inner is not None and getattr(inner, "model_type", None) in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            continue  # the language model of a composite, which has a model type of its own
        words = [*(field.name for field in fields(settings)), *re.findall(r'"(\w+)"', inspect.getsource(settings))]
        if everything or any(MIXERS.search(word) for word in words):
            found.append(family)
    return found


def small_config(family: str) -> Any:
    """Return a configuration of a few layers of each type and narrow widths."""
    settings = CONFIG_MAPPING[family]
    usual, changes = settings(), dict[str, Any]()
    names = {field.name for field in fields(settings)}
    for field in fields(settings):
        name, value = field.name, getattr(usual, field.name, None)
        if name == "layer_types":
            kinds = _kinds(value) if len(_kinds(value)) > 1 else _layer_types_in(settings)
            changes[name] = list(islice(cycle(kinds), LAYERS))
        elif _kinds(value):
            changes[name] = list(islice(cycle(_kinds(value)), LAYERS))
        elif re.search(r"attn_\w*(indices|idxs)$", name) and "layer_types" not in names:
            changes[name] = [1, 3]
        elif type(field.default) is int or (field.default is None and re.match("sliding_window$|indexer_", name)):
            size = next((size for pattern, size in SIZES if re.search(pattern, name)), None)
            if name == "num_key_value_heads" and value == usual.num_attention_heads:
                size = dict(SIZES)[r"heads?$"]  # a family without grouped queries
            if size is not None:
                changes[name] = field.default if field.default in (0, 1) and "token" not in name else size
    return settings(**changes)


def build(family: str, seed: int = 0, **settings: Any) -> Any:
    config = small_config(family)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"not small: {size:,} parameters")
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, **settings)


def look(family: str, seconds: int = 20, **settings: Any) -> Row:
    """Build a model and return what is seen in it."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(seconds)
    try:
        model = build(family, **settings)
        model(input_ids=TOKENS, use_cache=False)
        started = time.perf_counter()
        seen = observe(model, lambda: model(input_ids=TOKENS, use_cache=False))
        spent = time.perf_counter() - started
    except Exception as error:  # any library error is a finding here
        return Row(family, f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])
    finally:
        signal.alarm(0)
    return Row(family, "", seen, spent, look_at_names(model).matched)


def _too_slow(*_: Any) -> None:
    raise TimeoutError("it takes too long")


def _kinds(value: Any) -> list[str]:
    """Return the different words of a list of words; none for any other value."""
    words = value if isinstance(value, list | tuple) else []
    return list(dict.fromkeys(words)) if all(isinstance(word, str) for word in words) else []


def _layer_types_in(settings: type) -> list[str]:
    """Return the layer types that the source of a configuration names, or else that of its model."""
    found = list[str]()
    for module in (settings.__module__, settings.__module__.replace("configuration_", "modeling_")):
        if len(found) < 2:
            words = re.findall(r'"(\w+)"', inspect.getsource(importlib.import_module(module)))
            found = [kind for kind in ALLOWED_ATTN_LAYER_TYPES if kind in words]
    return found


def _short(paths: Iterable[str]) -> str:
    """Return paths with the numbers of the layers merged and what is common to all paths left out."""
    merged: dict[str, list[str]] = {}
    for path in paths:
        layer, name = re.match(r"(?:.*?\.(\d+)\.)?(.*)", path).groups()  # pyright: ignore
        merged.setdefault(name, []).extend([layer] if layer else [])
    return ", ".join(f"{name} {''.join(layers)}".strip() for name, layers in merged.items()) or "-"


def _cells(row: Row) -> list[str]:
    if row.seen is None:
        return [row.family, "failed", row.reason]
    seen, found = row.seen, [one.path for one in row.seen.attention]
    return [
        row.family,
        "yes" if row.is_hybrid else "no",
        _short(one.path + " (inline)" * one.inline for one in seen.attention),
        _short(path for one in seen.attention for path in one.modules if path != one.path),
        _short(seen.mixers),
        _short(seen.starved),
        _short(seen.severed),
        f"{row.seconds:.1f}",
        "the same" if found == list(row.matched) else _short(row.matched),
    ]


HEADS = ("family", "hybrid", "attention", "what follows it", "mixers", "starved", "severed", "s", "by names")


def main(names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    everything = names == ["all"]
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    rows = []
    for family in candidates(everything) if everything or not names else names:
        rows.append(look(family))
        print("| " + " | ".join(_cells(rows[-1])) + " |", flush=True)
    print(
        f"{len(rows)} models, {sum(row.is_hybrid for row in rows)} hybrids, {sum(bool(r.reason) for r in rows)} failed"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
