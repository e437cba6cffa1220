"""The element types of weights and activations: as bytes, and as the float64 values that the bytes stand for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto

ELEMENTS = ("float", "float16", "bfloat16")
ONNX_TYPE = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NUMPY_TYPE = {
    "float": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# Half the distance of neighbours: relative to a normal number, and between subnormals. See `rounding`.
_UNIT = {"float": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_TINY = {"float": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}


def size_of(kind: str) -> int:
    """Bytes of one element."""
    return NUMPY_TYPE[kind].itemsize


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """The bytes (uint8, flat) of float32 `values`, each rounded to nearest, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.ascontiguousarray(values, dtype=np.float32).astype(NUMPY_TYPE[kind])
    return rounded.reshape(-1).view(np.uint8)


def decode(data: np.ndarray, kind: str) -> np.ndarray:
    """The values (float64, flat) of `data`, uint8."""
    return np.ascontiguousarray(data).view(NUMPY_TYPE[kind]).astype(np.float64)


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """What is left of float32 `values` in this type: float64, same shape."""
    return decode(encode(values, kind), kind).reshape(np.shape(values))


def rounding(magnitude: np.ndarray, kind: str) -> np.ndarray:
    """The most that one rounding to `kind` moves a number of this magnitude (inside the type's range)."""
    return np.maximum(_UNIT[kind] * magnitude, _TINY[kind])
