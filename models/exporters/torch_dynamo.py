"""`torch.onnx.export(dynamo=True)` of a transformers 5 model, with the past as a flat list of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..random_model import random_model
from .dtypes import TORCH_NAMES

if TYPE_CHECKING:
    from torch import Tensor

# Sizes of the sample inputs: all different, none 0 or 1, which the exporter would take for constants.
_BATCH, _LENGTH, _PAST = 2, 6, 5
_PARTS = ("key", "value")


def export(name: str, directory: Path, *, opset: int | None = None, dtype: str = "fp32") -> Path:
    """Exports the random model `name` to ``directory/model.onnx``, with the experts as batched products.

    That is the only one of transformers' ways to compute experts which this exporter can translate. Inputs and outputs
    have Optimum's names.

    Args:
        name: a variant.
        directory: must exist.
        opset: None takes the exporter's default.
        dtype: a key of `dtypes.TORCH_NAMES`.

    Raises:
        ValueError: a layer keeps another state than keys and values.
    """
    import torch

    model = random_model(name, dtype=TORCH_NAMES[dtype], experts_implementation="batched_mm")
    past = _sample_past(model)
    # The last dimension names: batch and length of inputs, batch and past of keys and values. All are dynamic.
    dynamic = torch.export.Dim.DYNAMIC
    two, cache = {0: dynamic, 1: dynamic}, {0: dynamic, 2: dynamic}
    sample = (
        torch.full((_BATCH, _LENGTH), 3),
        torch.ones(_BATCH, _PAST + _LENGTH, dtype=torch.int64),
        torch.arange(_PAST, _PAST + _LENGTH).expand(_BATCH, -1).clone(),
        past,
    )
    file = directory / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(
            _flat(model),
            sample,
            str(file),
            input_names=["input_ids", "attention_mask", "position_ids", *_names("past_key_values", len(past))],
            output_names=["logits", *_names("present", len(past))],
            dynamic_shapes=(two, two, two, [cache] * len(past)),
            dynamo=True,
            verbose=False,
            **({} if opset is None else {"opset_version": opset}),
        )
    return file


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}.{i // 2}.{_PARTS[i % 2]}" for i in range(count)]


def _sample_past(model: Any) -> list[Tensor]:
    import torch

    with torch.no_grad():
        cache = model(torch.full((_BATCH, _PAST), 3), use_cache=True).past_key_values
    others = sorted({type(layer).__name__ for layer in cache.layers if not hasattr(layer, "keys")})
    if others:
        raise ValueError(f"a flat list of keys and values cannot hold the state of {', '.join(others)}")
    return [part.clone() for layer in cache.layers for part in (layer.keys, layer.values)]


def _flat(model: Any) -> Any:
    """`model` with tensors for inputs and outputs: the exporter knows nothing of transformers' caches."""
    import torch
    from transformers import DynamicCache

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[Tensor]) -> tuple:
            cache = DynamicCache()
            for place in range(0, len(past), 2):
                cache.update(past[place], past[place + 1], place // 2)
            answer = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=True,
            )
            layers = answer.past_key_values.layers
            return (answer.logits, *(part for layer in layers for part in (layer.keys, layer.values)))

    return Flat()
