"""The element type of a value, followed back through the graph."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, initializer_tensor

# The first output has the element type of the first input.
_LIKE_FIRST = frozenset({
    "Identity", "Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Gemm", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
    "Expand", "Slice", "Gather", "Concat", "Softmax", "Sigmoid", "Relu", "Tanh", "Sqrt", "Neg", "Reciprocal", "Clip", "TopK",
    "ReduceSum", "ReduceMean", "GatherElements", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization", "Min", "Max", "Dropout", "MoE", "QMoE", "Split",
})  # fmt: skip


def dtype(value: ir.Value) -> ir.DataType | None:
    """The element type of `value`, or None if it is neither annotated nor follows from the operators before it."""
    while value is not None:
        if value.dtype is not None:
            return value.dtype
        node = value.producer()
        if node is None:
            tensor = initializer_tensor(value)
            return None if tensor is None else tensor.dtype
        if node.op_type == "Cast":
            return ir.DataType(attribute(node, "to", 0))
        if node.op_type == "Constant" and "value" in node.attributes:
            return node.attributes["value"].value.dtype
        if node.op_type not in _LIKE_FIRST or (value is not node.outputs[0] and node.op_type != "Split"):
            return None
        value = node.inputs[0]
    return None
