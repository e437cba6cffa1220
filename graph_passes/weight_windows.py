"""Windows: views of the byte ranges in which a layer's weights lie.

Weights in a data file stay there: a window is one more external initializer over the same bytes. Weights inside the
model file are joined into one inline tensor. A window is a tensor of bytes, whatever lies in it: ONNX Runtime converts
float16 initializers of some nodes to float32, and byte offsets would then point into another tensor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir


@dataclass
class Windows:
    """The windows of one node, and where in them each tensor lies."""

    tensors: list[ir.TensorProtocol] = field(default_factory=list)
    """uint8, flat."""
    types: list[ir.DataType] = field(default_factory=list)
    """For each window the element type of what lies in it."""
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
    """
    groups: dict[tuple, dict[int, ir.TensorProtocol]] = {}
    for tensor in tensors:
        location = os.fspath(tensor.location) if isinstance(tensor, ir.ExternalTensor) else None
        groups.setdefault((location, tensor.dtype), {})[id(tensor)] = tensor
    windows = Windows()
    for (location, dtype), members in groups.items():
        window_name = f"{name}.window_{len(windows.tensors)}"
        make = _inline if location is None else _view
        window, offsets = make(list(members.values()), window_name)
        for identity, offset in zip(members, offsets, strict=True):
            windows.places[identity] = len(windows.tensors), offset
        windows.tensors.append(window)
        windows.types.append(dtype)
    return windows


def _view(members: list[ir.ExternalTensor], name: str) -> tuple[ir.ExternalTensor, list[int]]:
    ranges = [byte_range(tensor) for tensor in members]
    begin, end = min(begin for begin, _ in ranges), max(end for _, end in ranges)
    window = ir.ExternalTensor(
        members[0].location,
        begin,
        end - begin,
        ir.DataType.UINT8,
        shape=ir.Shape([end - begin]),
        name=name,
        base_dir=members[0].base_dir,
    )
    return window, [start - begin for start, _ in ranges]


def _inline(members: list[ir.TensorProtocol], name: str) -> tuple[ir.Tensor, list[int]]:
    parts = [tensor.tobytes() for tensor in members]
    ends = np.cumsum([len(part) for part in parts])
    window = ir.Tensor(np.frombuffer(b"".join(parts), np.uint8), name=name)
    return window, [int(end) - len(part) for end, part in zip(ends, parts, strict=True)]
