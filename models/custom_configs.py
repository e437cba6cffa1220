"""ONNX configurations for families that Optimum does not know, as a user would pass them.

They are plain on purpose: names of inputs and outputs and nothing else, no change to the model's own code. What comes
out is what people get who export these families today, right or wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimum.exporters.onnx import OnnxConfig
    from transformers import PretrainedConfig

# Families whose heads have two sizes, as DeepSeek-V3's have.
_LATENT_ATTENTION = ("deepseek_v2", "longcat_flash")


def custom_onnx_config(config: PretrainedConfig) -> OnnxConfig:
    """A text-generation configuration with past keys and values, for the model type of `config`."""
    from optimum.exporters.onnx import model_configs
    from optimum.utils.normalized_config import NormalizedTextConfig

    family = config.model_type
    base = model_configs.DeepSeekV3OnnxConfig if family in _LATENT_ATTENTION else model_configs.Qwen2OnnxConfig
    members: dict[str, Any] = {}
    if family == "dbrx":
        members["NORMALIZED_CONFIG_CLASS"] = NormalizedTextConfig.with_args(
            num_attention_heads="n_heads", hidden_size="d_model", num_layers="n_layers"
        )
    plain = type(f"{type(config).__name__}Onnx", (base,), members)
    return plain(config, task="text-generation", use_past=True, use_past_in_inputs=True)
