"""RMSNorm of queries and keys, over each head or over all of a token's features."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .constants import attribute, axes_of, is_standard
from .router_expressions import Reader, is_output_of, pairs


@dataclass(frozen=True)
class Norm:
    """``x / sqrt(mean(x²) + epsilon) * weight``, the mean over the last axis."""

    x: ir.Value
    weight: ir.Value
    """A constant, as long as the last axis."""
    epsilon: float


def read_norm(reader: Reader, value: ir.Value) -> Norm | None:
    """`value` as an RMSNorm, in float32 or with roundings that the operator does not make; None if it is something else."""
    if is_output_of(value, "RMSNormalization"):
        return _from_operator(reader, value.producer())
    if not is_output_of(value, "Mul"):
        return None
    for weight, scaled in pairs(value.producer()):
        if _is_weight(reader, weight, value):
            found = _normalised(reader, _without_casts(reader, scaled))
            if found is not None:
                return Norm(found[0], weight, found[1])
    return None


def _from_operator(reader: Reader, node: ir.Node) -> Norm | None:
    x, weight = node.inputs[:2]
    if not _is_weight(reader, weight, node.outputs[0]) or not reader.is_last_axis(attribute(node, "axis", -1), x):
        return None
    return Norm(x, weight, attribute(node, "epsilon", 1e-5))


def _is_weight(reader: Reader, weight: ir.Value, whole: ir.Value) -> bool:
    if not weight.is_initializer() or weight.const_value is None or len(weight.const_value.shape) != 1:
        return False
    return int(weight.const_value.shape[0]) == reader.columns(whole)


def _normalised(reader: Reader, value: ir.Value) -> tuple[ir.Value, float] | None:
    """(x, epsilon) of ``x * (1 / sqrt(mean(x²) + epsilon))`` or ``x / sqrt(…)``."""
    node = value.producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Div":
        return _with_root(reader, node.inputs[0], _argument_of_root(reader, node.inputs[1]))
    if node.op_type == "Mul":
        for x, inverse in pairs(node):
            found = _with_root(reader, x, _argument_of_inverse(reader, inverse))
            if found is not None:
                return found
    return None


def _argument_of_inverse(reader: Reader, value: ir.Value) -> ir.Value | None:
    """a of ``1 / sqrt(a)``."""
    node = value.producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Reciprocal":
        return _argument_of_root(reader, node.inputs[0])
    if node.op_type == "Div" and reader.number(node.inputs[0]) == 1:
        return _argument_of_root(reader, node.inputs[1])
    return node.inputs[0] if node.op_type == "Pow" and reader.number(node.inputs[1]) == -0.5 else None


def _argument_of_root(reader: Reader, value: ir.Value) -> ir.Value | None:
    node = value.producer()
    if is_output_of(value, "Sqrt"):
        return node.inputs[0]
    return node.inputs[0] if is_output_of(value, "Pow") and reader.number(node.inputs[1]) == 0.5 else None


def _with_root(reader: Reader, x: ir.Value, argument: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x before its cast, epsilon), where `argument` is ``mean(x²) + epsilon`` over the last axis."""
    if argument is None or not is_output_of(argument, "Add"):
        return None
    for epsilon, mean in pairs(argument.producer()):
        number, node = reader.number(epsilon), mean.producer()
        if number is None or not is_output_of(mean, "ReduceMean") or not attribute(node, "keepdims", 1):
            continue
        axes = axes_of(node)
        if axes is None or len(axes) != 1 or not reader.is_last_axis(axes[0], node.inputs[0]):
            continue
        if _squared(reader, node.inputs[0]) is x:
            return reader.uncast(x), number
    return None


def _squared(reader: Reader, value: ir.Value) -> ir.Value | None:
    """x of ``x ** 2`` or ``x * x``."""
    node = value.producer()
    if is_output_of(value, "Pow"):
        return node.inputs[0] if reader.number(node.inputs[1]) == 2 else None
    if is_output_of(value, "Mul") and node.inputs[0] is node.inputs[1]:
        return node.inputs[0]
    return None


def _without_casts(reader: Reader, value: ir.Value) -> ir.Value:
    """Also without the cast back to a 16-bit type: the operator rounds later."""
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Identity") and is_standard(node):
        value = node.inputs[0]
        node = value.producer()
    return value
