"""Models to train: named sizes, and any causal language model that Transformers can build from a configuration.

The named sizes are OLMo-Hybrids in which every second layer is attention without positions and the others are the gated
delta rule with negative eigenvalues, which can track state. They train in pure torch on a CPU.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from latebloom.errors import ConfigError, first_line, unknown
from latebloom.lm.extra import need_transformers
from latebloom.lm.kernels import choose_kernels
from latebloom.reading import LARGEST_JSON, parse_json, read_plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Size:
    """A named size, and the settings of training that suit it."""

    about: str
    width: int
    mlp: int
    layers: int
    heads: int
    context: int
    batch: int
    learning_rate: float

    def config(self) -> dict[str, Any]:
        """Return the configuration of the model, without its vocabulary."""
        return {
            "model_type": "olmo_hybrid",
            "hidden_size": self.width,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "layer_types": ["linear_attention", "full_attention"] * (self.layers // 2),
            "num_attention_heads": self.heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},  # no positions
            "linear_a_log_max": 1.0,  # slow decay: at OLMo's 16 the state is gone within a few tokens
            "tie_word_embeddings": True,
        }


SIZES = {
    "tiny": Size("0.5M parameters, for a CPU in minutes", 96, 192, 4, 2, 128, 16, 4e-3),
    "small": Size("17M parameters, for one GPU", 384, 1024, 8, 6, 512, 64, 2e-3),
    "base": Size("125M parameters, for several GPUs", 768, 2304, 12, 12, 1024, 64, 1e-3),
}
DEFAULTS = {"context": 512, "batch": 32, "learning_rate": 1e-3}
"""Settings of training for a configuration that is not a named size."""


LONGEST_REASON = 300
"""Characters that are repeated of an error of Transformers, which may have several lines."""


def defaults_of(model: str) -> dict[str, Any]:
    """Return context, batch size and learning rate for a model."""
    size = SIZES.get(model)
    return dict(DEFAULTS) if size is None else {name: getattr(size, name) for name in DEFAULTS}


def read_model_config(model: str, overrides: Sequence[str], vocabulary: int, end_token: int) -> dict[str, Any]:
    """Return the configuration for a named size, a config.json (or its folder), JSON, or a type of Transformers.

    Overrides are FIELD=VALUE, with JSON for values. If the vocabulary is not given, it is that of the corpus.
    """
    need_transformers()
    from transformers import CONFIG_MAPPING

    path = Path(model)
    config: dict[str, Any]
    if model in SIZES:
        config = SIZES[model].config()
    elif model.lstrip().startswith("{"):
        config = _parse(model, "model")
    elif path.is_dir() or path.suffix == ".json":
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():
            raise ConfigError(f"model: there is no {file}")
        config = _parse(read_plain(file, LARGEST_JSON, follow=True), f"model: {file}")
    elif model in CONFIG_MAPPING:
        config = {"model_type": model}
    else:
        raise unknown("model", model, [*SIZES, "FILE.json", "olmo_hybrid", "qwen3_next", "falcon_h1", "bamba"])
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"model: {override!r} is not FIELD=VALUE, such as hidden_size=256")
        try:
            config[name] = json.loads(value)
        except ValueError:
            config[name] = value
    if "model_type" not in config:
        raise ConfigError("model: the configuration has no model_type, as Transformers writes it")
    config.setdefault("vocab_size", -(-vocabulary // 64) * 64)  # a multiple that GPUs multiply fast
    for name in ("pad_token_id", "bos_token_id"):
        if not isinstance(config.get(name), int) or config[name] >= vocabulary:
            config[name] = None
    config["eos_token_id"] = end_token
    return config


def _parse(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{what} cannot be read as JSON ({first_line(error)})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{what} is not the configuration of a model; it holds no settings by name")
    return data


def build_model(config: Mapping[str, Any], seed: int, vocabulary: int, context: int) -> tuple["PreTrainedModel", dict]:
    """Return a model with random weights, and which kernels it uses; raise if tokenizer or context do not fit."""
    need_transformers()
    kernels = choose_kernels(config["model_type"])
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    kind = config["model_type"]
    try:
        made: Any = AutoConfig.for_model(**config)
        if type(made) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ConfigError(f"model: Transformers has no causal language model of the type {kind}")
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    except ConfigError:
        raise
    except Exception as error:  # a wrong configuration may raise anything
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise ConfigError(f"model: Transformers cannot build a {kind} ({type(error).__name__}: {reason})") from None
    check_fit(model, vocabulary, context)
    return model, kernels


def check_fit(model: "PreTrainedModel", vocabulary: int, context: int) -> None:
    """Raise unless a model has a token for each of the vocabulary, and takes contexts of this length."""
    embedding: Any = model.get_input_embeddings()
    size = embedding.weight.shape[0]
    if size < vocabulary:
        raise ConfigError(
            f"tokenizer: it has {vocabulary:,} tokens and the model {size:,}; prepare the corpus with a tokenizer that "
            "fits (lm prepare --tokenizer MODEL, or --vocabulary), or set vocab_size"
        )
    longest = longest_context(model)
    if longest is not None and longest < context:
        raise ConfigError(f"context: {context} is more than the {longest} positions of {type(model).__name__}")


def longest_context(model: "PreTrainedModel") -> int | None:
    """Return the largest context that a model can take; None if there is no limit.

    Only positions that are looked up in a table are a limit. Rotary positions, or none, can be computed for any length.
    """
    config: Any = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(limit, int):
        return None
    inputs = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) and m is not inputs]
    return limit if any(limit <= table.num_embeddings <= limit + 8 for table in tables) else None
