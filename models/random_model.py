"""Random weights that make a model worth testing: logits differ from token to token, so a wrong expert is seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
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

# What the families call the matrix behind the activation of an expert.
_DOWN_NAMES = ("down_proj", "output_linear", "experts.mlp.w2", ".w2.")
# Buffers that training fills: selection biases of routers. All others (rotary frequencies) are computed, and stay.
_LEARNED_BUFFERS = ("correction_bias", "expert_bias")


def random_model(
    name: str, *, seed: int = 7, dtype: str = "float32", overrides: Mapping[str, Any] | None = None, **loading: Any
) -> PreTrainedModel:
    """Builds the variant `name` on the CPU, in evaluation mode, with weights drawn from `seed`.

    `overrides` replaces arguments of the variant's configuration (say, ``num_hidden_layers``). The weights are drawn in
    float32 and then rounded to `dtype`, a name of a torch type. `loading` goes to the model's own constructor as it is
    (say, ``experts_implementation`` of transformers 5). Equal arguments give equal bits under one version of
    transformers; another version may store the same weights under other names and in other shapes.

    Raises:
        ValueError: no variant has that name, or this version of transformers does not have its class.
    """
    import torch
    import transformers

    wanted = variant(name)
    config = _transformers_class(wanted.config_class)(**{**wanted.arguments, **(overrides or {})})
    owner = _transformers_class(wanted.model_class) if wanted.model_class else transformers.AutoModelForCausalLM
    build = owner._from_config if wanted.model_class else owner.from_config
    with _no_init_weights():
        model = build(config, dtype=torch.float32, **loading).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in _learned(model):
            _draw(parameter_name, parameter, generator)
    return model.to(getattr(torch, dtype))


def _transformers_class(name: str) -> Any:
    import transformers

    found = getattr(transformers, name, None)
    if found is None:
        raise ValueError(f"transformers {transformers.__version__} has no {name}")
    return found


def _no_init_weights() -> AbstractContextManager:
    """Transformers' own initialisation would be overwritten, and takes longer than the drawing."""
    try:
        from transformers.initialization import no_init_weights  # transformers 5
    except ImportError:
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()


def _learned(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if name.endswith(_LEARNED_BUFFERS):
            yield name, buffer


def _draw(name: str, parameter: Tensor, generator: Generator) -> None:
    if parameter.ndim < 2 or name.endswith(_LEARNED_BUFFERS) or "bias" in name.rsplit(".", 1)[-1]:
        mean, std = (1.0, _NORM_STD) if "norm" in name and not name.endswith("bias") else (0.0, _BIAS_STD)
    elif "embed" in name or "wte" in name:
        mean, std = 0.0, _EMBEDDING_STD
    else:
        gain = _DOWN_GAIN if any(part in name for part in _DOWN_NAMES) else _GAIN
        mean, std = 0.0, gain / parameter.shape[-1] ** 0.5
    parameter.normal_(mean, std, generator=generator)
