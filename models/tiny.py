"""Tiny random models, exported for real: what the tests fuse and run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .export import export_directory
from .random_model import random_model

PYTORCH_FOLDER = "pytorch"


def export_tiny(
    variant: str,
    directory: str | Path,
    *,
    opset: int | None = None,
    dtype: str = "fp32",
    external: bool = True,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Builds the random model `variant` and exports it with Optimum into `directory`.

    The model itself is saved beside the export, in ``directory/pytorch`` (float32), for ``from_pretrained``. The same
    arguments give the same weights.

    Args:
        variant: a name from `families.VARIANTS`.
        directory: created if missing.
        opset, dtype, external: as for `export.export_directory`.
        overrides: arguments of the configuration to replace.

    Returns:
        The path of ``model.onnx``; its data lies in ``model.onnx_data`` if `external`.

    Raises:
        ValueError: no variant has that name.
    """
    directory = Path(directory)
    source = directory / PYTORCH_FOLDER
    random_model(variant, overrides=overrides).save_pretrained(source)
    return export_directory(source, directory, opset=opset, dtype=dtype, external=external)
