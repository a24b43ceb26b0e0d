"""Tiny Transformers hybrids of different families, from configurations alone."""

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 16}
DELTA = {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
ALTERNATING = {"layer_types": ["linear_attention", "full_attention"] * 2}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}

FAMILIES: dict[str, dict[str, Any]] = {
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "qwen3_next": {**ALTERNATING, **DELTA, **MOE, "head_dim": 8},
    "qwen3_5_text": {**ALTERNATING, **DELTA, "head_dim": 8},
    "olmo_hybrid": {**ALTERNATING, **DELTA},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "nemotron_h": {
        "hybrid_override_pattern": "M*M-",
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 16,
        "head_dim": 8,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 16, **MAMBA, **MOE},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"], "head_dim": 8},
    "minimax": {**ALTERNATING, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "block_size": 16},
}
EVERY_SECOND = ["model.layers.1.self_attn", "model.layers.3.self_attn"]
MATCHED = dict.fromkeys(FAMILIES, EVERY_SECOND) | {
    "falcon_h1": [f"model.layers.{i}.self_attn" for i in range(4)],
    "nemotron_h": ["model.layers.1.mixer"],
    "recurrent_gemma": ["model.layers.1.temporal_block", "model.layers.3.temporal_block"],
}


def build(family: str, seed: int = 0, **changes: Any) -> Any:
    settings = COMMON | FAMILIES.get(family, {}) | changes
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**settings))
