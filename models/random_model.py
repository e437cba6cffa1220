"""Random weights that make a model worth testing: logits differ from token to token, so a wrong expert is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .families import variant

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from transformers import PreTrainedModel

# A matrix is drawn with a standard deviation of gain / sqrt(inputs), which keeps the size of the activations at every
# width; with transformers' own 0.02 a small model answers nearly the same token always.
_GAIN = 1.2
# silu(gate) · up shrinks what it is given, and the mean of k experts shrinks it again: without more gain the residual
# would hide the experts.
_DOWN_GAIN = 4.0
_EMBEDDING_STD = 1.0
_NORM_STD = 0.2
_BIAS_STD = 0.1


def random_model(name: str, *, seed: int = 7, overrides: Mapping[str, Any] | None = None) -> PreTrainedModel:
    """Builds the variant `name` in float32 on the CPU, in evaluation mode, with weights drawn from `seed`.

    `overrides` replaces arguments of the variant's configuration (say, ``num_hidden_layers``). Equal arguments give
    equal bits.

    Raises:
        ValueError: no variant has that name.
    """
    import torch
    import transformers
    from transformers.modeling_utils import no_init_weights

    wanted = variant(name)
    config = getattr(transformers, wanted.config_class)(**{**wanted.arguments, **(overrides or {})})
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            _draw(parameter_name, parameter, generator)
    return model


def _draw(name: str, parameter: Tensor, generator: Generator) -> None:
    if parameter.ndim < 2:
        mean, std = (1.0, _NORM_STD) if "norm" in name else (0.0, _BIAS_STD)
    elif "embed" in name:
        mean, std = 0.0, _EMBEDDING_STD
    else:
        gain = _DOWN_GAIN if "down_proj" in name else _GAIN
        mean, std = 0.0, gain / parameter.shape[-1] ** 0.5
    parameter.normal_(mean, std, generator=generator)
