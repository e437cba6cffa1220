"""Configurations of random MoE language models, small enough to build and export on any machine.

A `Variant` names a transformers configuration class and its arguments. The dimensions are chosen to catch mistakes:
hidden size, expert width, width of shared experts, width of dense layers and heads × head size all differ, and where a
family allows it, ``head_dim`` is not ``hidden_size / num_attention_heads`` (as in the real Qwen3-30B-A3B).

The names are those of transformers (``model_type``), a suffix says what is different. Which version of transformers knows
a family differs; `random_model.random_model` says so where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_COMMON: dict[str, Any] = dict(
    vocab_size=384,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)

_TINY: dict[str, Any] = dict(_COMMON, head_dim=32, intermediate_size=128, num_experts=8, decoder_sparse_step=1)

_QWEN2: dict[str, Any] = dict(
    _COMMON,
    intermediate_size=160,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=112,
    num_experts=8,
    num_experts_per_tok=2,
    decoder_sparse_step=1,
    norm_topk_prob=False,
)

# DeepSeek's attention: keys and values from a low rank, one key for all heads with the rotary part.
_LATENT_ATTENTION: dict[str, Any] = dict(
    num_key_value_heads=4,
    kv_lora_rank=32,
    q_lora_rank=48,
    qk_rope_head_dim=8,
    qk_nope_head_dim=24,
    v_head_dim=40,
)

_DEEPSEEK: dict[str, Any] = dict(
    _COMMON,
    **{
        **_LATENT_ATTENTION,
        "intermediate_size": 160,
        "moe_intermediate_size": 96,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
)

_DEEPSEEK_V3: dict[str, Any] = dict(_DEEPSEEK, norm_topk_prob=True, routed_scaling_factor=2.5)
_DEEPSEEK_V2: dict[str, Any] = dict(_DEEPSEEK, q_lora_rank=None, head_dim=8, norm_topk_prob=False)


@dataclass(frozen=True)
class Variant:
    """A model to build: what it is for, its transformers configuration class, and that class's arguments."""

    name: str
    purpose: str
    config_class: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    model_class: str | None = None
    """Class of the causal language model; None: the one that transformers' auto classes choose."""


_QWEN = (
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
    Variant(
        "qwen2_moe",
        "top-k not normalised, a shared expert behind a sigmoid gate",
        "Qwen2MoeConfig",
        _QWEN2,
    ),
    Variant(
        "qwen2_moe_32",
        "the same with more experts than a tracer's dummy inputs reach",
        "Qwen2MoeConfig",
        {**_QWEN2, "num_experts": 32},
    ),
    Variant(
        "qwen3_next",
        "normalised top-k, a shared expert behind a sigmoid gate; a layer of linear attention",
        "Qwen3NextConfig",
        {
            **_COMMON,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 112,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
)

_SOFTMAX_ROUTERS = (
    Variant(
        "mixtral",
        "normalised top-k, few wide experts",
        "MixtralConfig",
        {**_COMMON, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 24},
    ),
    Variant(
        "mixtral_window",
        "the same with a sliding window shorter than the prompts",
        "MixtralConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 24,
            "sliding_window": 8,
        },
    ),
    Variant(
        "olmoe",
        "top-k not normalised, norms of queries and keys over all heads",
        "OlmoeConfig",
        {**_COMMON, "intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False},
    ),
    Variant(
        "flex_olmo",
        "top-k not normalised, norms behind the blocks",
        "FlexOlmoConfig",
        {**_COMMON, "intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False},
    ),
    Variant(
        "dbrx",
        "experts stacked in three matrices, weights of the experts divided by their 1-norm",
        "DbrxConfig",
        dict(
            d_model=64,
            n_heads=4,
            n_layers=2,
            max_seq_len=256,
            vocab_size=384,
            tie_word_embeddings=False,
            attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
            ffn_config=dict(
                ffn_hidden_size=96, moe_num_experts=8, moe_top_k=2, moe_jitter_eps=0, moe_normalize_expert_weights=1.0
            ),
        ),
    ),
    Variant(
        "hunyuan_v1_moe",
        "normalised top-k and a shared expert without a gate",
        "HunYuanMoEV1Config",
        {**_COMMON, "intermediate_size": 96, "num_experts": 8, "moe_topk": 2, "head_dim": 32},
    ),
    Variant(
        "ernie4_5_moe",
        "softmax, a bias that takes part in the choice only, shared experts, layer 0 dense",
        "Ernie4_5_MoeConfig",
        {
            **_COMMON,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
        },
    ),
    Variant(
        "jamba",
        "top-k not normalised; a layer of Mamba",
        "JambaConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "use_mamba_kernels": False,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 1,
            "expert_layer_offset": 0,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
    Variant(
        "minimax",
        "normalised top-k",
        "MiniMaxConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
    Variant(
        "doge",
        "experts of one hidden unit each, found by product keys",
        "DogeConfig",
        {**_COMMON, "intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 2, "is_moe": True},
    ),
)

_LOGIT_ROUTERS = (
    Variant(
        "granitemoe",
        "softmax over the chosen logits, gate and up in one matrix, multipliers everywhere",
        "GraniteMoeConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
        },
    ),
    Variant(
        "granitemoeshared",
        "the same with a shared expert without a gate",
        "GraniteMoeSharedConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "shared_intermediate_size": 112,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.25,
        },
    ),
    Variant(
        "granitemoehybrid",
        "the same in a model that may have layers of Mamba (here it has none)",
        "GraniteMoeHybridConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "shared_intermediate_size": 112,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.25,
            "layer_types": ["attention", "attention"],
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
        },
    ),
    Variant(
        "gpt_oss",
        "softmax over the chosen logits, biases, interleaved clamped gate and up, a window in layer 0, sinks",
        "GptOssConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Variant(
        "phimoe",
        "sparse mixer: two softmaxes with thresholds, weights that do not sum to one; norms with biases",
        "PhimoeConfig",
        {**_COMMON, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    Variant(
        "jetmoe",
        "softmax over the chosen logits, gate and up in one matrix; attention has experts, too",
        "JetMoeConfig",
        {**_COMMON, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "kv_channels": 16},
    ),
)

_SIGMOID_ROUTERS = (
    Variant(
        "deepseek_v3",
        "sigmoid, a bias that takes part in the choice only, 4 groups of which 2 are kept, a shared expert, layer 0 dense",
        "DeepseekV3Config",
        {**_DEEPSEEK_V3, "n_group": 4, "topk_group": 2},
    ),
    Variant(
        "deepseek_v3_one_group",
        "the same with one group (as Kimi-K2)",
        "DeepseekV3Config",
        {**_DEEPSEEK_V3, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 3},
    ),
    Variant(
        "deepseek_v3_32",
        "the same with more experts than a tracer's dummy inputs reach",
        "DeepseekV3Config",
        {**_DEEPSEEK_V3, "n_group": 4, "topk_group": 2, "n_routed_experts": 32},
    ),
    Variant(
        "glm4_moe",
        "sigmoid, a bias that takes part in the choice only, one group, a shared expert, layer 0 dense",
        "Glm4MoeConfig",
        {
            **_COMMON,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "head_dim": 32,
            "n_group": 1,
            "topk_group": 1,
            "partial_rotary_factor": 0.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    Variant(
        "dots1",
        "sigmoid, a bias that takes part in the choice only, one group, two shared experts, layer 0 dense",
        "Dots1Config",
        {
            **_COMMON,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 32,
        },
    ),
    Variant(
        "llama4_text",
        "one expert, its sigmoid multiplied into the expert's input, a shared expert",
        "Llama4TextConfig",
        {
            **_COMMON,
            "intermediate_size": 96,
            "intermediate_size_mlp": 160,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "head_dim": 32,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 32,
        },
        "Llama4ForCausalLM",
    ),
    Variant(
        "lfm2_moe",
        "sigmoid, a bias that takes part in the choice only; a layer of convolution, layer 0 dense",
        "Lfm2MoeConfig",
        {
            **_COMMON,
            "intermediate_size": 160,
            "moe_intermediate_size": 96,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    Variant(
        "minimax_m2",
        "sigmoid, a bias that takes part in the choice only, normalised, no groups",
        "MiniMaxM2Config",
        {**_COMMON, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32},
    ),
)

_GROUPED_SOFTMAX_ROUTERS = (
    Variant(
        "deepseek_v2",
        "softmax, top-k not normalised, shared experts, layer 0 dense",
        "DeepseekV2Config",
        {**_DEEPSEEK_V2, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    ),
    Variant(
        "deepseek_v2_groups",
        "the same with 4 groups, the 2 with the best expert kept, and a scale",
        "DeepseekV2Config",
        {
            **_DEEPSEEK_V2,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 16.0,
        },
    ),
    Variant(
        "longcat_flash",
        "softmax, a bias that takes part in the choice only, two experts that return their input, a scale",
        "LongcatFlashConfig",
        {
            **{name: value for name, value in _COMMON.items() if name != "num_hidden_layers"},
            **_LATENT_ATTENTION,
            "head_dim": 8,
            "num_layers": 1,
            "ffn_hidden_size": 160,
            "expert_ffn_hidden_size": 96,
            "n_routed_experts": 8,
            "zero_expert_num": 2,
            "moe_topk": 3,
            "routed_scaling_factor": 6.0,
        },
    ),
)

VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (*_QWEN, *_SOFTMAX_ROUTERS, *_LOGIT_ROUTERS, *_SIGMOID_ROUTERS, *_GROUPED_SOFTMAX_ROUTERS)
}


def variant(name: str) -> Variant:
    """The variant called `name`.

    Raises:
        ValueError: there is none of that name; the message lists those that exist.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown model variant {name!r}; known: {', '.join(VARIANTS)}")
    return VARIANTS[name]


_COUNT_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k")


def expert_sizes(name: str) -> tuple[int, int]:
    """How many experts with weights each layer of the variant has, and how many of them a token gets at most.

    Raises:
        ValueError: there is no variant of that name.
    """
    arguments = variant(name).arguments
    arguments = {**arguments, **arguments.get("ffn_config", {})}
    return _first(arguments, _COUNT_OF_EXPERTS), _first(arguments, _CHOSEN_EXPERTS)


def _first(arguments: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next(arguments[name] for name in names if name in arguments)
