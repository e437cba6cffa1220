"""Windows: views of the byte ranges in which a layer's weights lie.

Weights in a data file stay there: a window is one more external initializer over the same bytes. Weights inside the
model file are joined into one inline tensor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .meanings import Refusal


@dataclass
class Windows:
    """The windows of one node, and where in them each tensor lies."""

    tensors: list[ir.TensorProtocol] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """``id(tensor)`` → (window, byte offset in it)."""

    def place(self, tensor: ir.TensorProtocol) -> tuple[int, int]:
        return self.places[id(tensor)]


def byte_range(tensor: ir.ExternalTensor) -> tuple[int, int]:
    """Where `tensor` begins in its file, and where it ends."""
    begin = tensor.offset or 0
    return begin, begin + tensor.nbytes


def build_windows(tensors: Iterable[ir.TensorProtocol], name: str) -> Windows:
    """One window for each data file and element type among `tensors` (and one for each type of the inline ones).

    Args:
        tensors: the weights of one node; the same tensor may come twice.
        name: a prefix for the names of the windows.

    Raises:
        Refusal: a window cannot be made of whole elements.
    """
    groups: dict[tuple, dict[int, ir.TensorProtocol]] = {}
    for tensor in tensors:
        location = os.fspath(tensor.location) if isinstance(tensor, ir.ExternalTensor) else None
        groups.setdefault((location, tensor.dtype), {})[id(tensor)] = tensor
    windows = Windows()
    for (location, dtype), members in groups.items():
        window_name = f"{name}.window_{len(windows.tensors)}"
        if location is None:
            window, offsets = _inline(list(members.values()), dtype, window_name)
        else:
            window, offsets = _view(list(members.values()), dtype, window_name)
        for identity, offset in zip(members, offsets, strict=True):
            windows.places[identity] = len(windows.tensors), offset
        windows.tensors.append(window)
    return windows


def _view(members: list[ir.ExternalTensor], dtype: ir.DataType, name: str) -> tuple[ir.ExternalTensor, list[int]]:
    ranges = [byte_range(tensor) for tensor in members]
    begin, end = min(begin for begin, _ in ranges), max(end for _, end in ranges)
    size = int(dtype.itemsize)  # a float, since some types are smaller than a byte
    # The tensors may lie at odd distances: a few bytes before the first (or after the last) make the elements whole.
    begin -= min(begin, -(end - begin) % size)
    end += -(end - begin) % size
    if end > os.path.getsize(members[0].path):
        raise Refusal(f"the weights in {os.fspath(members[0].location)!r} do not span whole elements of {dtype.name}")
    window = ir.ExternalTensor(
        members[0].location,
        begin,
        end - begin,
        dtype,
        shape=ir.Shape([(end - begin) // size]),
        name=name,
        base_dir=members[0].base_dir,
    )
    return window, [start - begin for start, _ in ranges]


def _inline(members: list[ir.TensorProtocol], dtype: ir.DataType, name: str) -> tuple[ir.Tensor, list[int]]:
    parts = [tensor.tobytes() for tensor in members]
    ends = np.cumsum([len(part) for part in parts])
    elements = np.frombuffer(b"".join(parts), dtype=dtype.numpy())
    return ir.Tensor(elements, dtype=dtype, name=name), [int(end) - len(part) for end, part in zip(ends, parts, strict=True)]
