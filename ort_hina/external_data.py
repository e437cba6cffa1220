"""External data: where a model says that its weights lie, checked before anything believes it. Nothing is read here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from .errors import OrtHinaError


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: as written in the model, except that a missing offset is 0. `size` follows from its shape."""

    location: str
    offset: int
    length: int | None
    size: int


def external_protos(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of `model` that lies in a data file: initializers and attributes, in subgraphs and functions too."""
    yield from _in_graph(model.graph)
    for function in model.functions:
        yield from _in_nodes(function.node)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from (tensor for tensor in graph.initializer if _is_external(tensor))
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and _is_external(attribute.t):
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.TENSORS:
                yield from filter(_is_external, attribute.tensors)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _in_graph(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for graph in attribute.graphs:
                    yield from _in_graph(graph)


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def place_of(tensor: onnx.TensorProto) -> Place:
    """Reads the entries of an external tensor.

    Raises:
        OrtHinaError: an offset or length is not a number, or the element type is unknown.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(entries["offset"]) if "offset" in entries else 0
        length = int(entries["length"]) if "length" in entries else None
        size = math.ceil(math.prod(tensor.dims) * ir.DataType(tensor.data_type).itemsize)
    except (TypeError, ValueError) as error:
        raise OrtHinaError(f"external data of tensor {tensor.name!r}: {error}") from error
    return Place(entries.get("location", ""), offset, length, size)


def check_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Checks that every external tensor of the model at `path` lies inside its data file, and that file inside the folder.

    Raises:
        OrtHinaError: naming the tensor, what was expected and what was found.
    """
    sizes: dict[str, int] = {}
    for tensor in external_protos(model):
        place = place_of(tensor)
        if place.location not in sizes:
            sizes[place.location] = _checked_file(place.location, path, tensor.name).stat().st_size
        _check_range(tensor, place, sizes[place.location])


def _checked_file(location: str, path: Path, tensor: str) -> Path:
    who = f"external data of tensor {tensor!r}"
    inside = os.path.normpath(location)
    if not location or os.path.isabs(location) or inside.split(os.sep)[0] == os.pardir:
        raise OrtHinaError(f"{who}: location {location!r} leads out of the folder of {path}; expected a path inside it")
    file = path.parent / location
    if not file.exists():
        raise OrtHinaError(f"{who}: data file {file} does not exist")
    if not file.is_file():
        raise OrtHinaError(f"{who}: {file} is not a regular file")
    # A model that is itself a link (as in the cache of the Hugging Face hub) may bring its data from where it really is.
    allowed = {path.parent.resolve(), path.resolve().parent}
    if not any(file.resolve().is_relative_to(folder) for folder in allowed):
        raise OrtHinaError(f"{who}: {file} is a link to {file.resolve()}, outside of the folder of {path}")
    return file


def _check_range(tensor: onnx.TensorProto, place: Place, file_size: int) -> None:
    who = f"external data of tensor {tensor.name!r} in {place.location!r}"
    if place.offset < 0 or (place.length is not None and place.length < 0):
        raise OrtHinaError(f"{who}: offset {place.offset} and length {place.length} must not be negative")
    if place.length is not None and place.length != place.size:
        kind = ir.DataType(tensor.data_type).name
        raise OrtHinaError(f"{who}: length {place.length}, expected {place.size} for {kind} of shape {list(tensor.dims)}")
    end = place.offset + place.size
    if end > file_size:
        raise OrtHinaError(
            f"{who}: ends at byte {end}, and the file has {file_size} bytes: it is truncated or not the right one"
        )
