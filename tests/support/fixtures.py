"""The exports that tests read: graphs as exporters wrote them, with weights drawn again from seeds.

``tests/fixtures/index.json`` tells where each comes from. `ort_hina.models.fixtures` writes them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from ort_hina.models.seeded_weights import fill_weights

FOLDER = Path(__file__).resolve().parent.parent / "fixtures"


@cache
def index() -> Mapping[str, Mapping[str, Any]]:
    """By name: family, exporter, versions, opset, dtype, experts, k, missing_experts (by layer), whole_model, and
    ``export``: whether the file as exported (with its true weights) answers what PyTorch answers, and holds every expert."""
    return json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))


def names(**wanted: Any) -> list[str]:
    """The fixtures whose entry in the index has these values, as ``names(exporter="optimum", dtype="fp32")``."""
    return [name for name, entry in index().items() if all(entry[key] == value for key, value in wanted.items())]


def load(name: str) -> onnx.ModelProto:
    """The model, every weight inline."""
    model = onnx.load_from_string(gzip.decompress((FOLDER / f"{name}.onnx.gz").read_bytes()))
    fill_weights(model)
    return model


def write(name: str, directory: Path, *, external: bool = True) -> Path:
    """Writes the model to ``directory/model.onnx``, its weights to ``model.onnx_data`` beside it unless not `external`.

    Returns the path of ``model.onnx``.
    """
    file = directory / "model.onnx"
    storage = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 1024} if external else {}
    onnx.save_model(load(name), file, **storage)
    return file
