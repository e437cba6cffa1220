"""Mixture-of-Experts language models on CPUs with ONNX Runtime.

    import onnxruntime, ort_hina

    ort_hina.fuse("model.onnx")                        # writes model_hina.onnx beside it; the weights stay in place
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    session = onnxruntime.InferenceSession("model_hina.onnx", options)

Importing this package imports neither torch nor optimum nor onnxruntime: each name loads what it needs when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Bound here and not lazily: the function has the name of its module, and importing the module later would hide it.
from .machine import machine

_LAZY = {
    "FusionReport": "fusion",
    "ORTModelForCausalLM": "causal_lm",
    "OrtHinaError": "errors",
    "fuse": "fusion",
    "inspect": "inspection",
    "library_path": "library",
    "register": "library",
    "__version__": "version",
}

__all__ = ["machine", *(name for name in _LAZY if not name.startswith("_"))]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
