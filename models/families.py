"""Configurations of random MoE language models, small enough to build and export on any machine.

A `Variant` names a transformers configuration class and its arguments. The dimensions are chosen to catch mistakes:
no two of hidden size, expert width, head size and heads × head size are equal, and ``head_dim`` is never
``hidden_size / num_attention_heads`` (as in the real Qwen3-30B-A3B).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TINY: dict[str, Any] = dict(
    vocab_size=384,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=128,
    num_experts=8,
    decoder_sparse_step=1,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)


@dataclass(frozen=True)
class Variant:
    """A model to build: what it is for, its transformers configuration class, and that class's arguments."""

    name: str
    purpose: str
    config_class: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


_VARIANTS = (
    Variant(
        "qwen3_moe",
        "normalised top-k, every layer sparse",
        "Qwen3MoeConfig",
        {**_TINY, "moe_intermediate_size": 96, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    Variant(
        "qwen3_moe_nonorm_dense",
        "top-k not normalised, biases in attention, layer 0 dense, an expert width that is no multiple of 16",
        "Qwen3MoeConfig",
        {
            **_TINY,
            "moe_intermediate_size": 72,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "attention_bias": True,
            "mlp_only_layers": [0],
        },
    ),
    Variant(
        "qwen3_moe_demo",
        "the proportions of Qwen3-30B-A3B (64 experts, 8 chosen, grouped heads), 255 MB in float32",
        "Qwen3MoeConfig",
        {
            **_TINY,
            "vocab_size": 4096,
            "hidden_size": 384,
            "moe_intermediate_size": 192,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "max_position_embeddings": 2048,
        },
    ),
)

VARIANTS: Mapping[str, Variant] = {variant.name: variant for variant in _VARIANTS}


def variant(name: str) -> Variant:
    """The variant called `name`.

    Raises:
        ValueError: there is none of that name; the message lists those that exist.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown model variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]
