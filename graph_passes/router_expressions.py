"""The small expressions that routers are made of, however an exporter spells them.

Everything here looks backwards from a value. Values are tables: rows of tokens, and experts (or chosen ones) along the
last axis. A view that keeps the last axis keeps the rows in their order, whatever it does to the axes before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import onnx_ir as ir

from .constants import attribute, axes_of, is_standard, small_constant
from .dims import ONE, Dim, product
from .dtypes import dtype
from .meanings import Refusal
from .shapes import Shapes

_VIEWS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"})
_EXACT_IN_FLOAT = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_TESTS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or"})
# The operand that has the element type of the first output. A matrix is stored with its type, whatever it meets.
_TYPE_FROM = {"MatMul": 1, "Gemm": 1, "Where": 1} | dict.fromkeys(
    (
        "Abs", "Add", "Clip", "Concat", "Div", "Exp", "GatherElements", "Log", "LogSoftmax", "Mul", "Neg", "Reciprocal",
        "ReduceL1", "ReduceMax", "ReduceSum", "Reshape", "ScatterElements", "Sigmoid", "Softmax", "Squeeze", "Sub", "TopK",
        "Unsqueeze",
    ),
    0,
)  # fmt: skip


def said(node: ir.Node) -> str:
    """A node as messages name it: by its own name, or else by that of its output."""
    return f"{node.op_type} {(node.name or node.outputs[0].name)!r}"


def refuse(node: ir.Node, reason: str) -> NoReturn:
    raise Refusal(f"{said(node)} {reason}")


@dataclass(frozen=True)
class TopK:
    """The k largest of the last axis of `table`."""

    node: ir.Node
    table: ir.Value
    k: int

    @property
    def values(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def indices(self) -> ir.Value:
        return self.node.outputs[1]

    @property
    def is_sorted(self) -> bool:
        return attribute(self.node, "sorted", 1) == 1


class Reader:
    """Reads expressions of one graph, which must not change meanwhile."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    # ---- views

    def roots(self, value: ir.Value) -> list[ir.Value]:
        """`value`, then what it is a view of, and so on. A cast to float32 is one where nothing is rounded."""
        found = [value]
        while (inner := self._viewed(found[-1])) is not None:
            found.append(inner)
        return found

    def root(self, value: ir.Value) -> ir.Value:
        return self.roots(value)[-1]

    def root_node(self, value: ir.Value, operator: str) -> ir.Node | None:
        """The standard `operator` that computes what `value` is a view of, by its first output; otherwise None."""
        root = self.root(value)
        return root.producer() if is_output_of(root, operator) else None

    def _viewed(self, value: ir.Value) -> ir.Value | None:
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "Identity" or (node.op_type == "Cast" and self._is_exact(node)):
            return node.inputs[0]
        return node.inputs[0] if node.op_type in _VIEWS and self._keeps_rows(node) else None

    def _is_exact(self, cast: ir.Node) -> bool:
        came, target = self.dtype(cast.inputs[0]), ir.DataType(attribute(cast, "to", 0))
        return came == target or (target == ir.DataType.FLOAT and came in _EXACT_IN_FLOAT)

    def _keeps_rows(self, view: ir.Node) -> bool:
        before, after = self.shapes.shape(view.inputs[0]), self.shapes.shape(view.outputs[0])
        if not before or not after or not self.shapes.dims.same(before[-1], after[-1]):
            return False
        return view.op_type != "Expand" or self.shapes.dims.same(product(before), product(after))

    # ---- types and shapes

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """As `dtypes.dtype`, through the operators of routers as well."""
        while (found := dtype(value)) is None:
            node = value.producer()
            if node is not None and node.op_type in _TESTS:
                return ir.DataType.BOOL
            place = None if node is None else _TYPE_FROM.get(node.op_type)
            if place is None:
                return None
            value = node.inputs[place]
        return found

    def need_float(self, node: ir.Node, value: ir.Value) -> None:
        """Arithmetic of `node`, on `value`, must be in float32: the operator computes in nothing else.

        Raises:
            Refusal: it is not, or the type is unknown.
        """
        found = self.dtype(value)
        if found != ir.DataType.FLOAT:
            came = "an unknown type" if found is None else found.name
            refuse(node, f"computes in {came}: the operator computes in FLOAT, and would round and choose otherwise")

    def columns(self, value: ir.Value) -> int | None:
        """The size of the last axis, if it is constant."""
        shape = self.shapes.shape(value)
        return self.shapes.dims.simplify(shape[-1]).constant if shape else None

    def same_rows(self, left: ir.Value, right: ir.Value) -> bool:
        """Whether both have the same axes before the last."""
        a, b = self.shapes.shape(left), self.shapes.shape(right)
        return bool(a and b and len(a) == len(b)) and self._same_dims(a[:-1], b[:-1])

    def same_shape(self, left: ir.Value, right: ir.Value) -> bool:
        a, b = self.shapes.shape(left), self.shapes.shape(right)
        return a is not None and b is not None and len(a) == len(b) and self._same_dims(a, b)

    def _same_dims(self, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
        return all(self.shapes.dims.same(a, b) for a, b in zip(left, right, strict=True))

    def is_last_axis(self, axis: int, table: ir.Value) -> bool:
        return axis == -1 or (rank := self.shapes.rank(table)) is not None and axis == rank - 1

    # ---- constants

    def number(self, value: ir.Value | None, rank: int = 1) -> float | None:
        """`value` as one constant number that leaves the shape of a table of `rank` axes as it is; otherwise None."""
        array = None if value is None else small_constant(self.uncast(value))
        return float(array.item()) if array is not None and array.size == 1 and array.ndim <= rank else None

    def uncast(self, value: ir.Value) -> ir.Value:
        """`value` without the casts before it in which nothing is rounded."""
        node = value.producer()
        while node is not None and (node.op_type == "Identity" or (node.op_type == "Cast" and self._is_exact(node))):
            value = node.inputs[0]
            node = value.producer()
        return value

    def fill(self, value: ir.Value | None) -> float | None:
        """The number that all elements of `value` are, whatever its shape; otherwise None."""
        if value is None:
            return None
        value = self.uncast(value)
        node = value.producer()
        if node is not None and is_standard(node) and node.op_type == "ConstantOfShape":
            content = node.attributes.get("value")
            return 0.0 if content is None else float(content.value.numpy().item())
        if node is not None and is_standard(node) and node.op_type in _VIEWS:
            return self.fill(node.inputs[0])
        array = small_constant(value)
        if array is None or array.size == 0 or not (array == array.flat[0]).all():
            return None
        return float(array.flat[0])

    # ---- operators

    def top_k(self, value: ir.Value) -> TopK | None:
        """The TopK that `value` is an output of.

        Raises:
            Refusal: it takes the smallest, of another axis than the last, or a number of them that is not constant.
        """
        node = value.producer()
        if node is None or node.op_type != "TopK" or not is_standard(node):
            return None
        table = node.inputs[0]
        if not self.is_last_axis(attribute(node, "axis", -1), table):
            refuse(node, "does not choose along the last axis")
        if attribute(node, "largest", 1) != 1:
            refuse(node, "takes the smallest ones, and a router takes the largest")
        k = attribute(node, "k", None) if len(node.inputs) < 2 else self._only_integer(node.inputs[1])
        if k is None:
            refuse(node, "takes a number of experts that is not constant")
        return TopK(node, table, int(k))

    def _only_integer(self, value: ir.Value | None) -> int | None:
        found = self.shapes.integers(value)
        return None if found is None or len(found.items) != 1 else found.items[0].constant

    def softmax_of(self, node: ir.Node) -> ir.Value:
        """What `node`, a Softmax over the last axis in float32, is of.

        Raises:
            Refusal: another axis, or another type.
        """
        table = node.inputs[0]
        version = opset(node)
        axis = attribute(node, "axis", -1 if version is None or version >= 13 else 1)
        # Up to opset 12 the axes from `axis` on counted as one: the same where `axis` is the last.
        if not self.is_last_axis(axis, table):
            refuse(node, f"runs over axis {axis}, which is not proved to be the last one")
        self.need_float(node, table)
        return table

    def sigmoid_of(self, value: ir.Value) -> ir.Value | None:
        """x, where `value` is ``Sigmoid(x)`` or ``1 / (1 + exp(-x))`` in float32; None where it is neither.

        Raises:
            Refusal: in another type.
        """
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "Sigmoid":
            self.need_float(node, node.inputs[0])
            return node.inputs[0]
        exponential = self._added_to_one(self._inverted(node))
        negative = self.root(exponential.producer().inputs[0]) if is_output_of(exponential, "Exp") else None
        if not is_output_of(negative, "Neg"):
            return None
        x = negative.producer().inputs[0]
        self.need_float(node, x)
        return x

    def _inverted(self, node: ir.Node) -> ir.Value | None:
        """x of ``1 / x``."""
        if node.op_type == "Reciprocal":
            return self.root(node.inputs[0])
        return self.root(node.inputs[1]) if node.op_type == "Div" and self.number(node.inputs[0]) == 1 else None

    def _added_to_one(self, value: ir.Value | None) -> ir.Value | None:
        if not is_output_of(value, "Add"):
            return None
        for one, other in pairs(value.producer()):
            if self.number(one) == 1:
                return self.root(other)
        return None

    def reduced(self, value: ir.Value, operators: frozenset[str]) -> tuple[ir.Node, ir.Value] | None:
        """The reduction over the last axis alone that `value` is, with that axis gone; and what it reduces."""
        node = value.producer()
        if node is not None and node.op_type in _VIEWS and is_standard(node):
            inner = self.reduced_keeping(node.inputs[0], operators)
            dropped = inner is not None and self._drops_last(node)
            return inner if dropped else None
        return self._reduction(node, operators, keepdims=0)

    def reduced_keeping(self, value: ir.Value, operators: frozenset[str]) -> tuple[ir.Node, ir.Value] | None:
        """As `reduced`, with the last axis kept: of one element."""
        node = value.producer()
        if node is not None and node.op_type == "Unsqueeze" and axes_of(node) is not None and len(axes_of(node)) == 1:
            if self.is_last_axis(axes_of(node)[0], value):
                return self._reduction(node.inputs[0].producer(), operators, keepdims=0)
        return self._reduction(node, operators, keepdims=1)

    def _reduction(self, node: ir.Node | None, operators: frozenset[str], keepdims: int):
        if node is None or node.op_type not in operators or not is_standard(node):
            return None
        axes = axes_of(node)
        if attribute(node, "keepdims", 1) != keepdims or axes is None or len(axes) != 1:
            return None
        return (node, node.inputs[0]) if self.is_last_axis(axes[0], node.inputs[0]) else None

    def _drops_last(self, view: ir.Node) -> bool:
        before, after = self.shapes.shape(view.inputs[0]), self.shapes.shape(view.outputs[0])
        fits = before is not None and after is not None and len(before) == len(after) + 1
        return fits and before[-1] == ONE and self._same_dims(before[:-1], after)


def is_output_of(value: ir.Value | None, operator: str) -> bool:
    """Whether `value` is the first output of ONNX's own `operator`."""
    node = None if value is None else value.producer()
    return node is not None and node.op_type == operator and is_standard(node) and value is node.outputs[0]


def pairs(node: ir.Node) -> tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]:
    """The two operands of a commutative operator, in both orders."""
    left, right = node.inputs
    return (left, right), (right, left)


def is_power_of_two(number: float) -> bool:
    return math.isfinite(number) and number > 0 and math.frexp(number)[0] == 0.5


def opset(node: ir.Node) -> int | None:
    """The version of ONNX's operators that `node` is written for."""
    graph = node.graph
    if node.version is not None or graph is None:
        return node.version
    return graph.opset_imports.get("", graph.opset_imports.get("ai.onnx"))
