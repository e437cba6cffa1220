"""Optimum (``optimum-cli export onnx``), with and without a configuration of one's own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..export import export_directory
from ..random_model import random_model


def export(
    name: str, directory: Path, *, opset: int | None = None, dtype: str = "fp32", custom: bool = False, seed: int = 0
) -> Path:
    """Exports the random model `name` to ``directory/model.onnx`` and ``model.onnx_data``.

    The arguments are those of `export.export_directory`.
    """
    with tempfile.TemporaryDirectory() as source:
        random_model(name).save_pretrained(source)
        return export_directory(Path(source), directory, opset=opset, dtype=dtype, custom=custom, seed=seed)
