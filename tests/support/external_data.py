"""Models whose weights lie in data files, placed as a test wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx


def set_external(tensor: onnx.TensorProto, location: str, offset: int | None, length: int | None) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))


def save_external(
    model: onnx.ModelProto,
    path: Path,
    *,
    file_of: Callable[[int, onnx.TensorProto], str | None] = lambda i, tensor: "weights.bin",
    gap: Callable[[int], int] = lambda i: 0,
) -> None:
    """Writes `model` to `path` and its initializers to data files beside it.

    `file_of(i, tensor)` names the file of initializer i (None: it stays inline); `gap(i)` bytes of 0xAA come before it.
    """
    contents: dict[str, bytearray] = {}
    for i, tensor in enumerate(model.graph.initializer):
        name = file_of(i, tensor)
        if name is None:
            continue
        data = contents.setdefault(name, bytearray())
        data += b"\xaa" * gap(i)
        begin, raw = len(data), tensor.raw_data
        data += raw
        set_external(tensor, name, begin, len(raw))
    for name, data in contents.items():
        (path.parent / name).write_bytes(data)
    onnx.save(model, path)
