"""Models without their weights: each large tensor becomes the seed of a tensor much like it.

The graph is kept as the exporter wrote it, and the file becomes small enough for a repository. Where the seed is read
again, every machine draws the same bits: only integers of the generator and exact or correctly rounded float operations.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_LARGE = 1024
"""Bytes. Smaller tensors stay: biases, norms, constants that have a meaning."""
_LOCATION = "seed"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_BITS_OF_BFLOAT16 = 16
# The standard deviation of the sum of four integers that are uniform in [0, 65535].
_SUM_STD = np.float64(4 * (65536**2 - 1) / 12) ** 0.5
_SUM_MEAN = 4 * 65535 / 2


def strip_weights(model: onnx.ModelProto) -> None:
    """Replaces the large float tensors and packed integers among the initializers of `model`, in place.

    External data must have been loaded. Tensors with values that are not finite (masks) and integers that are not packed
    weights stay.
    """
    for tensor in _initializers(model):
        if tensor.data_type in _FLOATS and (values := _values(tensor)).nbytes >= _LARGE:
            values = values.astype(np.float64)
            if np.isfinite(values).all():
                _replace(tensor, {"mean": f"{values.mean():.4g}", "std": f"{values.std():.4g}"})
        elif tensor.data_type == TensorProto.UINT8 and numpy_helper.to_array(tensor).nbytes >= _LARGE:
            _replace(tensor, {})


def fill_weights(model: onnx.ModelProto) -> None:
    """Draws what `strip_weights` left out, in place. Equal files give equal bits."""
    for tensor in _initializers(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") != _LOCATION:
            continue
        tensor.raw_data = _drawn(tensor, entries)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _initializers(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer


def _values(tensor: TensorProto) -> np.ndarray:
    return numpy_helper.to_array(tensor)


def _replace(tensor: TensorProto, distribution: dict[str, str]) -> None:
    # The name as the seed: equal tensors of two layers would hide that one was taken for the other.
    entries = {"location": _LOCATION, "seed": str(zlib.crc32(tensor.name.encode())), **distribution}
    kept = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    tensor.CopyFrom(kept)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def _drawn(tensor: TensorProto, entries: dict[str, str]) -> bytes:
    count = int(np.prod(tensor.dims))
    raw = np.random.PCG64(int(entries["seed"])).random_raw(count).astype("<u8")
    if tensor.data_type == TensorProto.UINT8:
        return (raw >> np.uint64(56)).astype(np.uint8).tobytes()
    sums = raw.view("<u2").reshape(count, 4).sum(axis=1, dtype=np.int64)
    normal = (sums - _SUM_MEAN) / _SUM_STD
    values = (normal * float(entries["std"]) + float(entries["mean"])).astype("<f4")
    if tensor.data_type == TensorProto.FLOAT:
        return values.tobytes()
    if tensor.data_type == TensorProto.FLOAT16:
        return values.astype("<f2").tobytes()
    return (values.view("<u4") >> np.uint32(_BITS_OF_BFLOAT16)).astype("<u2").tobytes()
