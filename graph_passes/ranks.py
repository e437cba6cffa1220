"""The number of dimensions of a value, followed back through the graph as far as needed."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import onnx_ir as ir

from .constants import attribute, axes_of, initializer_tensor

# The output has as many dimensions as the operand that has most of them.
_BROADCASTING = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Where", "Min", "Max", "Mod", "MatMul", "Equal", "And", "Or", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual",
})  # fmt: skip
# The first output has as many dimensions as the first input. (The fused attention operators keep [B, S, features].)
_LIKE_FIRST = frozenset({
    "Identity", "Cast", "CastLike", "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Erf", "Sin", "Cos", "Tanh", "Sigmoid",
    "Relu", "Gelu", "Softplus", "Softmax", "Clip", "Not", "Dropout", "Slice", "Transpose", "Concat", "Split", "TopK", "Trilu",
    "CumSum", "Tile",
    "ScatterElements", "ScatterND", "GatherElements", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "GroupQueryAttention", "MultiHeadAttention", "QuickGelu",
    "FastGelu", "BiasGelu", "MatMulNBits", "MoE", "QMoE",
})  # fmt: skip
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"})


def rank(
    value: ir.Value, known: MutableMapping[ir.Value, int | None], vector_length: Callable[[ir.Value], int | None]
) -> int | None:
    """The rank of `value`, or None. `known` keeps what was found; `vector_length` gives the length of a shape vector.

    A residual stream is thousands of operators long: this walks with its own stack, not by recursion.
    """
    pending = [value]
    while pending:
        current = pending[-1]
        if current in known:
            pending.pop()
            continue
        needed = [operand for operand in _operands(current) if operand not in known]
        if needed:
            pending.extend(needed)
            continue
        known[current] = _from_operands(current, known, vector_length)
        pending.pop()
    return known[value]


def _stated(value: ir.Value) -> int | None:
    """The rank that needs no operand: annotated, or of a tensor."""
    if value.shape is not None:
        return len(value.shape)
    tensor = initializer_tensor(value)
    return None if tensor is None else len(tensor.shape)


def _operands(value: ir.Value) -> list[ir.Value]:
    """The values whose rank decides that of `value`."""
    node = value.producer()
    if node is None or _stated(value) is not None:
        return []
    if node.op_type in _BROADCASTING or node.op_type == "Gather":
        return [operand for operand in node.inputs if operand is not None]
    if node.op_type in _LIKE_FIRST or node.op_type in _REDUCTIONS or node.op_type in ("Unsqueeze", "Squeeze", "Expand"):
        return [operand for operand in node.inputs[:1] if operand is not None]
    return []


def _from_operands(value: ir.Value, known, vector_length: Callable[[ir.Value], int | None]) -> int | None:
    node = value.producer()
    stated = _stated(value)
    if stated is not None or node is None:
        return stated
    ranks = [known[operand] for operand in _operands(value)]
    if None in ranks:
        return None
    if node.op_type in _BROADCASTING:
        return max(ranks)
    if node.op_type in _LIKE_FIRST:
        return ranks[0]
    return _from_arguments(node, ranks, vector_length)


def _from_arguments(node: ir.Node, ranks: list[int], vector_length: Callable[[ir.Value], int | None]) -> int | None:
    operator = node.op_type
    if operator in _REDUCTIONS:
        if attribute(node, "keepdims", 1):
            return ranks[0]
        axes = axes_of(node)
        if axes is None:  # not given: over all axes; or not constant
            return 0 if len(node.inputs) == 1 and not attribute(node, "noop_with_empty_axes", 0) else None
        return ranks[0] - len(axes)
    if operator == "Gather":
        return ranks[0] - 1 + ranks[1]
    if operator in ("Unsqueeze", "Squeeze"):
        axes = axes_of(node)
        sign = 1 if operator == "Unsqueeze" else -1
        return None if axes is None else ranks[0] + sign * len(axes)
    if operator == "Constant" and "value" in node.attributes:
        return len(node.attributes["value"].value.shape)
    if operator == "Reshape":
        return vector_length(node.inputs[1])
    if operator == "ConstantOfShape":
        return vector_length(node.inputs[0])
    if operator == "Expand":
        length = vector_length(node.inputs[1])
        return None if length is None else max(ranks[0], length)
    if operator == "Einsum":
        _, arrow, result = attribute(node, "equation", "").partition("->")
        return len(result.replace(" ", "")) if arrow and "." not in result else None
    return {"Flatten": 2, "Gemm": 2, "Range": 1, "Shape": 1}.get(operator)
