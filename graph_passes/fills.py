"""Values that hold one number everywhere."""

from __future__ import annotations

import onnx_ir as ir

from .constants import is_standard

# Zeros for each of so many experts may be written out as a constant.
_LARGEST = 4096


def fill_of(value: ir.Value) -> float | None:
    """The number that every element of `value` is (ConstantOfShape, a constant expanded, or a constant), or None."""
    node = value.producer()
    while (
        node is not None
        and is_standard(node)
        and node.op_type in ("Identity", "Expand", "Cast", "Unsqueeze", "Reshape", "Tile")
    ):
        value = node.inputs[0]
        node = value.producer()
    if node is None:
        tensor = value.const_value if value.is_initializer() and not value.is_graph_input() else None
        return _uniform(tensor)
    if not is_standard(node) or node.op_type not in ("ConstantOfShape", "Constant"):
        return None
    content = node.attributes.get("value")
    if content is None:
        return 0.0 if node.op_type == "ConstantOfShape" else None
    return _uniform(content.value)


def _uniform(tensor: ir.TensorProtocol | None) -> float | None:
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or not 0 < tensor.size <= _LARGEST:
        return None
    array = tensor.numpy().reshape(-1)
    return float(array[0]) if (array == array[0]).all() else None
