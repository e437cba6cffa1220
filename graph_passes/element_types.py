"""The element types of all values of a graph, worked out from its beginning to its end."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, initializer_tensor, is_standard
from .domain import DOMAIN

# All operands have one type, which is the result's.
_ALIKE = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "MatMul", "Gemm", "Concat", "Mod"})
# The operands from this place on have one type, which is the result's.
_ALIKE_FROM = {"Where": 1}
# The result has the first operand's type.
_LIKE_FIRST = frozenset({
    "Identity", "Pow", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split",
    "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Softmax", "Sigmoid", "Relu", "Tanh", "Erf",
    "Sqrt", "Neg", "Abs", "Exp", "Log", "Reciprocal", "Clip", "Gelu", "Softplus", "ReduceSum", "ReduceMean", "ReduceMax",
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Dropout", "Attention", "Trilu", "CumSum",
})  # fmt: skip
_LIKE_FIRST_ELSEWHERE = {
    DOMAIN: frozenset({"MoE", "GroupQueryAttention"}),
    "com.microsoft": frozenset({
        "SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "GroupQueryAttention", "MultiHeadAttention", "MoE",
        "QMoE", "RotaryEmbedding", "QuickGelu", "FastGelu", "BiasGelu", "MatMulNBits", "FusedMatMul",
    }),
}  # fmt: skip


class ElementTypes:
    """Answers for one graph, as it is when this is made."""

    def __init__(self, graph: ir.Graph) -> None:
        self._known: dict[ir.Value, ir.DataType | None] = {}
        for node in graph:
            for value in node.outputs:
                self._known[value] = value.dtype
            if node.outputs and node.outputs[0].dtype is None:
                self._known[node.outputs[0]] = _stated(node) or self._of_operands(node)

    def of(self, value: ir.Value) -> ir.DataType | None:
        """The element type of `value`, or None."""
        if value in self._known:
            return self._known[value]
        tensor = initializer_tensor(value)
        return value.dtype if tensor is None else tensor.dtype

    def _of_operands(self, node: ir.Node) -> ir.DataType | None:
        if not is_standard(node):
            operands = node.inputs[:1] if node.op_type in _LIKE_FIRST_ELSEWHERE.get(node.domain, ()) else ()
        elif node.op_type in _ALIKE or node.op_type in _ALIKE_FROM:
            operands = node.inputs[_ALIKE_FROM.get(node.op_type, 0) :]
        else:
            operands = node.inputs[:1] if node.op_type in _LIKE_FIRST else ()
        types = (self.of(operand) for operand in operands if operand is not None)
        return next((kind for kind in types if kind is not None), None)


def _stated(node: ir.Node) -> ir.DataType | None:
    """The type that the node itself states."""
    if node.op_type == "Cast" and is_standard(node):
        return ir.DataType(attribute(node, "to", 0))
    value = attribute(node, "value", None) if node.op_type in ("Constant", "ConstantOfShape") and is_standard(node) else None
    return None if value is None else value.dtype
