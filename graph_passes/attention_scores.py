"""Scores before the softmax: ``softcap * tanh(scale * q·k / softcap) + mask``, and a sink beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .attention_heads import LAST_OF_FOUR, transposed_keys
from .attention_mask import HIDES
from .constants import attribute, axes_of, is_standard, small_constant
from .meanings import Refusal
from .router_expressions import Reader, is_output_of, pairs, refuse

_UNARY = {"Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Neg": np.negative}
_BINARY = {"Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Add": np.add, "Sub": np.subtract}
_VIEWS = frozenset({"Identity", "Squeeze", "Unsqueeze", "Reshape"})
# Constants are computed from a shape in about six steps.
_LONGEST = 16


@dataclass(frozen=True)
class Scores:
    """``scale * query · keyᵀ``, (B, heads, S, T)."""

    query: ir.Value
    """(B, heads, S, D)"""
    key: ir.Value
    """(B, heads, T, D), heads repeated where they are."""
    scale: float
    product: ir.Node
    """The MatMul."""
    softcap: float = 0.0
    mask: ir.Value | None = None
    """Is added, or, where `mask_is_boolean`, keeps a score where it is true."""
    mask_is_boolean: bool = False
    sink: ir.Value | None = None
    """A constant with one number for each head, of which the exponential is added to the sum."""


def known_number(reader: Reader, value: ir.Value | None, depth: int = 0) -> float | None:
    """The only number that `value` is, if it is constant or computed from constants and constant sizes (in float32, as the
    graph does); otherwise None."""
    if value is None or depth > _LONGEST:
        return None
    array = small_constant(value)
    if array is not None:
        return float(array.flat[0]) if array.size == 1 else None
    integers = reader.shapes.integers(value)
    if integers is not None and len(integers.items) == 1 and integers.items[0].constant is not None:
        return float(integers.items[0].constant)
    node = value.producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Cast":
        return _cast(known_number(reader, node.inputs[0], depth + 1), ir.DataType(attribute(node, "to", 0)))
    if node.op_type in _VIEWS:
        return known_number(reader, node.inputs[0], depth + 1)
    functions = _UNARY if node.op_type in _UNARY else _BINARY
    if node.op_type not in functions:
        return None
    numbers = [known_number(reader, operand, depth + 1) for operand in node.inputs]
    if None in numbers:
        return None
    with np.errstate(all="ignore"):
        return float(functions[node.op_type](*(np.float32(number) for number in numbers)))


def _cast(number: float | None, target: ir.DataType) -> float | None:
    if number is None or target not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        return number if number is not None and number == int(number) else None
    return float(np.asarray(number).astype(target.numpy()))


def read_scores(reader: Reader, value: ir.Value) -> Scores | None:
    """`value`, what a softmax is of, as scores; None if no product of queries and keys is behind it.

    Raises:
        Refusal: there is one, and something else too that no operator for attention does.
    """
    value, sink = _without_sink(reader, value)
    value = reader.uncast(value)
    found = _masked(reader, value) or _plain(reader, value)
    if found is None or sink is None:
        return found
    return replace(found, sink=_sink(reader, sink, found))


def _without_sink(reader: Reader, value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Scores, and what stands beside them in the last column."""
    value = reader.uncast(value)
    if is_output_of(value, "Sub"):
        whole, largest = value.producer().inputs
        node = reader.uncast(largest).producer()
        # A softmax does not change when the maximum is taken off first.
        if node is not None and node.op_type == "ReduceMax" and reader.uncast(node.inputs[0]) is reader.uncast(whole):
            if attribute(node, "keepdims", 1) and axes_of(node) in ((-1,), (3,)):
                value = reader.uncast(whole)
    if not is_output_of(value, "Concat") or len(value.producer().inputs) != 2:
        return value, None
    if attribute(value.producer(), "axis", 0) not in LAST_OF_FOUR:
        return value, None
    return tuple(value.producer().inputs)


def _sink(reader: Reader, value: ir.Value, scores: Scores) -> ir.Value:
    """The constant behind `value` (B, heads, S, 1)."""
    heads = reader.shapes.shape(scores.query)[1].constant
    value = _without(reader, value, ("Expand",))
    shape = reader.shapes.shape(value)
    sizes = [] if shape is None else [size.constant for size in shape]
    # However it is viewed before that: of these axes only that of the heads has more than one element.
    constant = _without(reader, value, ("Reshape", "Unsqueeze", "Squeeze", "Identity"))
    tensor = constant.const_value if constant.is_initializer() and not constant.is_graph_input() else None
    if heads is None or sizes[-3:] != [heads, 1, 1] or sizes[:-3] not in ([], [1]) or tensor is None or tensor.size != heads:
        refuse(scores.product, "has a column beside its scores that is not one constant for each head")
    return constant


def _without(reader: Reader, value: ir.Value, operators: tuple[str, ...]) -> ir.Value:
    value = reader.uncast(value)
    while (node := value.producer()) is not None and node.op_type in operators and is_standard(node):
        value = reader.uncast(node.inputs[0])
    return value


def _masked(reader: Reader, value: ir.Value) -> Scores | None:
    """Scores with a mask added, or chosen by one."""
    node = value.producer()
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Add":
        for scores, mask in pairs(node):
            found = _plain(reader, reader.uncast(scores))
            if found is not None:
                return replace(found, mask=mask)
    if node.op_type == "Where":
        found = _plain(reader, reader.uncast(node.inputs[1]))
        fill = reader.fill(node.inputs[2])
        if found is not None and (fill is None or fill > HIDES):
            refuse(node, "replaces scores by something else than what hides them")
        if found is not None:
            return replace(found, mask=node.inputs[0], mask_is_boolean=True)
    return None


def _plain(reader: Reader, value: ir.Value) -> Scores | None:
    factor, inner = _factor(reader, value)
    if is_output_of(inner, "Tanh"):
        inside, scores = _factor(reader, reader.uncast(inner.producer().inputs[0]))
        found = _product(reader, scores)
        if found is not None and factor <= 0:
            refuse(inner.producer(), f"is multiplied by {factor:g}, which is no soft cap")
        # softcap * tanh(scale / softcap * product)
        return found and replace(found, scale=found.scale * inside * factor, softcap=factor)
    found = _product(reader, inner)
    return found and replace(found, scale=found.scale * factor)


def _product(reader: Reader, value: ir.Value) -> Scores | None:
    node = value.producer()
    plain = is_output_of(value, "MatMul")
    if not (plain or _is_fused_product(node)) or reader.shapes.rank(node.inputs[0]) != 4:
        return None
    query_factor, query = _factor(reader, reader.uncast(node.inputs[0]))
    key_factor, keys = _factor(reader, reader.uncast(node.inputs[1]))
    keys = transposed_keys(reader, keys) if plain else keys
    if keys is None:
        return None
    inner_factor, keys = _factor(reader, reader.uncast(keys))
    scale = query_factor * key_factor * inner_factor * attribute(node, "alpha", 1.0)
    if not math.isfinite(scale) or scale <= 0:
        raise Refusal(f"the scores are multiplied by {scale:g}")
    return Scores(query, keys, scale, node)


def _is_fused_product(node: ir.Node | None) -> bool:
    """ONNX Runtime's ``alpha * a · bᵀ``."""
    if node is None or (node.domain, node.op_type) != ("com.microsoft", "FusedMatMul"):
        return False
    flags = [attribute(node, name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")]
    return flags == [0, 1, 0, 0]


def _factor(reader: Reader, value: ir.Value) -> tuple[float, ir.Value]:
    """(c, v), where `value` is c · v."""
    total = 1.0
    while (node := value.producer()) is not None and is_standard(node) and node.op_type in ("Mul", "Div"):
        step = _one_factor(reader, node)
        if step is None:
            break
        total, value = total * step[0], reader.uncast(step[1])
    return total, value


def _one_factor(reader: Reader, node: ir.Node) -> tuple[float, ir.Value] | None:
    if node.op_type == "Div":
        divisor = known_number(reader, node.inputs[1])
        return None if not divisor else (1 / divisor, node.inputs[0])
    for constant, other in pairs(node):
        factor = known_number(reader, constant)
        if factor is not None:
            return factor, other
    return None
