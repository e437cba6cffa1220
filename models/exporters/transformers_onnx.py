"""Transformers 5's own exporter, `transformers.exporters.OnnxExporter`: one graph for prefill and decode."""

from __future__ import annotations

from pathlib import Path

from ..random_model import random_model
from .dtypes import TORCH_NAMES

_BATCH, _LENGTH, _PAST = 2, 6, 5


def export(name: str, directory: Path, *, opset: int | None = None, dtype: str = "fp32", fusions: str | None = None) -> Path:
    """Exports the random model `name` into `directory`, its experts as grouped products (transformers' default).

    Args:
        name: a variant.
        directory: must exist.
        opset: None takes the exporter's default.
        dtype: a key of `dtypes.TORCH_NAMES`.
        fusions: what transformers calls ``ort_fusions``: None, or ``"cpu"`` for operators of ONNX Runtime's CPU build.

    Returns:
        The .onnx file, whose name transformers chooses.
    """
    import torch
    from transformers.exporters import OnnxConfig, OnnxExporter

    model = random_model(name, dtype=TORCH_NAMES[dtype])
    with torch.no_grad():
        cache = model(torch.full((_BATCH, _PAST), 3), use_cache=True).past_key_values
    sample = dict(
        input_ids=torch.full((_BATCH, _LENGTH), 3),
        attention_mask=torch.ones(_BATCH, _PAST + _LENGTH, dtype=torch.int64),
        position_ids=torch.arange(_PAST, _PAST + _LENGTH).expand(_BATCH, -1).clone(),
        past_key_values=cache,
        use_cache=True,
    )
    config = OnnxConfig(dynamic=True, ort_fusions=fusions, **({} if opset is None else {"opset_version": opset}))
    OnnxExporter().export(model, sample, config=config).save_pretrained(str(directory))
    return directory / "model.onnx"
