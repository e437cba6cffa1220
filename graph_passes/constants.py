"""Small constants of a graph, whichever way they are spelled."""

from __future__ import annotations

import math
import os

import numpy as np
import onnx_ir as ir

# Shapes, axes, indices and on/off values: everything that a pattern compares is smaller than this.
LARGEST_SMALL_CONSTANT = 64


def is_standard(node: ir.Node) -> bool:
    """Whether the node's operator is ONNX's own."""
    return node.domain in ("", "ai.onnx")


def initializer_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer that the caller of the model cannot replace (a graph input would let them)."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value


def small_constant(value: ir.Value | None) -> np.ndarray | None:
    """The value as an array, if it is a constant of at most `LARGEST_SMALL_CONSTANT` elements; otherwise None."""
    if value is None:
        return None
    node = value.producer()
    if node is None:
        tensor = initializer_tensor(value)
    elif node.op_type == "Constant" and is_standard(node):
        return _constant_node(node)
    else:
        return None
    return _array(tensor) if tensor is not None and tensor.size <= LARGEST_SMALL_CONSTANT else None


def _array(tensor: ir.TensorProtocol) -> np.ndarray:
    """External data is read here, not by onnx_ir, which refuses links that lead out of the model's folder: whether these may
    has been judged when the model was read."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    shape = tuple(int(size) for size in tensor.shape)
    elements = np.fromfile(
        os.path.realpath(tensor.path), tensor.dtype.numpy(), count=math.prod(shape), offset=tensor.offset or 0
    )
    return elements.reshape(shape)


def _constant_node(node: ir.Node) -> np.ndarray | None:
    for name, attribute in node.attributes.items():
        if name == "value":
            tensor = attribute.value  # as_tensor() checks a run-time protocol: half of the time of a whole walk
            return tensor.numpy() if tensor.size <= LARGEST_SMALL_CONSTANT else None
        if name in ("value_int", "value_ints"):
            return np.array(attribute.value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.array(attribute.value, np.float32)
    return None


def scalar(value: ir.Value | None) -> float | int | None:
    """The only element of a small constant; None for anything else."""
    array = small_constant(value)
    return array.item() if array is not None and array.size == 1 else None


def attribute(node: ir.Node, name: str, default):
    """An attribute's value, or `default` where the node leaves it out."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def axes_of(node: ir.Node, position: int = 1) -> tuple[int, ...] | None:
    """The axes of Squeeze, Unsqueeze or a reduction: an attribute up to opset 12, an input since then. None: not given,
    or not constant."""
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].value)
    if len(node.inputs) <= position:
        return None
    array = small_constant(node.inputs[position])
    return None if array is None else tuple(int(axis) for axis in array.reshape(-1))
