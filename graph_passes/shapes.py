"""Shapes, ranks and integer vectors of a graph, worked out on demand.

Optimum's exports carry no shape information between their inputs and outputs. Running ONNX's shape inference over
hundreds of thousands of nodes would cost more than the whole fusion, and it gives up on shapes that are computed; here
only what a pattern asks about is worked out, once, with exact symbolic dimensions.
"""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

import onnx_ir as ir

from . import ranks
from .constant_views import slice_cuts, split_sizes
from .constants import (
    LARGEST_SMALL_CONSTANT,
    attribute,
    axes_of,
    initializer_tensor,
    is_standard,
    small_constant,
)
from .dims import INFERRED, ONE, Dim, DimTable, product, quotient

Shape = tuple[Dim, ...]

# s10*s70, 2*s10*s70
_PRODUCT = re.compile(r"[0-9A-Za-z_]+(\*[0-9A-Za-z_]+)*")

# Operators that hand their first input's shape on, whatever they do to its elements.
_SAME_SHAPE = frozenset({
    "Identity", "Cast", "Sigmoid", "Relu", "Tanh", "Erf", "Sqrt", "Neg", "Softmax", "Gelu", "Softplus", "Not", "Exp", "Abs",
    "Reciprocal", "Clip", "ScatterElements", "Cos", "Sin",
})  # fmt: skip
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater", "Less", "And", "Or", "Pow"})
# Operators that hand a constant on, in another shape or type.
_CONSTANT_VIEWS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})
_REDUCTIONS = frozenset({"ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1", "ReduceL2"})


class Integers(NamedTuple):
    """An integer scalar, or a vector of integers, of the kind that shapes are computed with."""

    items: tuple[Dim, ...]
    is_scalar: bool


class Shapes:
    """Answers for one graph, which must not change while they are asked for."""

    def __init__(self) -> None:
        self.dims = DimTable()
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._integers: dict[ir.Value, Integers | None] = {}
        self._ranks: dict[ir.Value, int | None] = {}

    def agree(self, value: ir.Value, shape: Shape) -> None:
        """Records a shape that a pattern has proved."""
        annotated = self._annotated(value)
        if annotated is not None and len(annotated) == len(shape):
            for pair in zip(shape, annotated, strict=True):
                self.dims.equate(*pair)
        self._shapes[value] = shape

    def rank(self, value: ir.Value) -> int | None:
        known = self._shapes.get(value)
        return len(known) if known is not None else ranks.rank(value, self._ranks, self._vector_length)

    def shape(self, value: ir.Value) -> Shape | None:
        """The dimensions of `value`, or None if not even their number is known."""
        if value not in self._shapes:
            self._shapes[value] = self._derived_and_annotated(value) or self._all_unknown(value)
        return self._shapes[value]

    def integers(self, value: ir.Value | None) -> Integers | None:
        """`value` as a vector or scalar of symbolic integers, or None."""
        if value is None:
            return None
        if value not in self._integers:
            self._integers[value] = self._constant_integers(value) or self._computed_integers(value)
        return self._integers[value]

    def is_dim(self, value: ir.Value | None, expected: Dim) -> bool:
        """Whether `value` is the single integer `expected`."""
        found = self.integers(value)
        return found is not None and len(found.items) == 1 and self.dims.same(found.items[0], expected)

    def reshaped(self, source: Shape, target: tuple[Dim, ...]) -> Shape | None:
        """`target` of a Reshape (allowzero=0) with its 0 and -1 filled in; None if that cannot be worked out."""
        filled = [
            source[i] if dim == Dim(0) and i < len(source) else self.dims.simplify(dim) for i, dim in enumerate(target)
        ]
        if INFERRED not in filled:
            return tuple(filled)
        place = filled.index(INFERRED)
        rest = product(filled[:place] + filled[place + 1 :])
        missing = quotient(self.dims.simplify(product(source)), rest)
        return None if missing is None else (*filled[:place], missing, *filled[place + 1 :])

    # ---- shapes

    def _derived_and_annotated(self, value: ir.Value) -> Shape | None:
        derived, annotated = self._derived(value), self._annotated(value)
        if derived is not None and annotated is not None and len(derived) == len(annotated):
            for pair in zip(derived, annotated, strict=True):
                self.dims.equate(*pair)
        return derived or annotated

    def _annotated(self, value: ir.Value) -> Shape | None:
        if value.shape is None:
            return None
        return tuple(
            Dim(dim) if isinstance(dim, int) else self._named(dim.value) or self.dims.unknown((value, axis))
            for axis, dim in enumerate(value.shape)
        )

    def _named(self, name: str | None) -> Dim | None:
        """A dimension that the graph names: ONNX lets one name stand for one size in all of a graph. PyTorch's exporter
        writes products of names, too."""
        if not name:
            return None
        if _PRODUCT.fullmatch(name) is None:
            return self.dims.unknown(name)
        factors = name.split("*")
        return product(Dim(int(factor)) if factor.isdigit() else self.dims.unknown(factor) for factor in factors)

    def _all_unknown(self, value: ir.Value) -> Shape | None:
        rank = self.rank(value)
        return None if rank is None else tuple(self.dims.unknown((value, axis)) for axis in range(rank))

    def _vector_length(self, value: ir.Value) -> int | None:
        found = self.integers(value)
        return None if found is None else len(found.items)

    def _derived(self, value: ir.Value) -> Shape | None:
        node = value.producer()
        if node is None:
            tensor = initializer_tensor(value)
            return None if tensor is None else tuple(Dim(int(size)) for size in tensor.shape)
        if not is_standard(node) or (value is not node.outputs[0] and node.op_type not in ("TopK", "Split")):
            return None
        if node.op_type == "Split":
            return self._split(node, value)
        if node.op_type in _SAME_SHAPE:
            return self.shape(node.inputs[0])
        if node.op_type in _BROADCASTING:
            return self._broadcast_operands(node, value) or self._broadcast_with_vector(value, node)
        if node.op_type in _REDUCTIONS:
            axes = axes_of(node)
            return None if axes is None else self._reduced(node, axes)
        rule = _SHAPE_RULES.get(node.op_type)
        return None if rule is None else rule(self, node)

    def _gather(self, node: ir.Node) -> Shape | None:
        data, index = self.shape(node.inputs[0]), self.shape(node.inputs[1])
        if not data or index is None:
            return None
        axis = attribute(node, "axis", 0) % len(data)
        return (*data[:axis], *index, *data[axis + 1 :])

    def _einsum(self, node: ir.Node) -> Shape | None:
        """With every axis named by a letter of its own."""
        terms, arrow, result = attribute(node, "equation", "").replace(" ", "").partition("->")
        sizes: dict[str, Dim] = {}
        for term, operand in zip(terms.split(","), node.inputs, strict=False):
            shape = self.shape(operand)
            if shape is None or len(shape) != len(term):
                return None
            sizes.update(zip(term, shape, strict=True))
        return tuple(sizes[letter] for letter in result) if arrow and set(result) <= sizes.keys() else None

    def _constant(self, node: ir.Node) -> Shape | None:
        content = node.attributes.get("value")
        return None if content is None else tuple(Dim(int(size)) for size in content.value.shape)

    def _broadcast_with_vector(self, value: ir.Value, node: ir.Node) -> Shape | None:
        """A constant vector (a norm's scale, a bias) fixes the last dimension; the other dimensions stay unknown."""
        for operand in node.inputs:
            tensor = initializer_tensor(operand)
            if tensor is not None and len(tensor.shape) == 1 and tensor.shape[0] > 1:
                shape = self._all_unknown(value)
                return None if not shape else (*shape[:-1], Dim(int(tensor.shape[0])))
        return None

    def _broadcast_operands(self, node: ir.Node, value: ir.Value | None = None) -> Shape | None:
        """An Add of two computed values is not followed: a residual stream is one of them behind the other, and this goes
        by recursion. One of two products is (a rotation)."""
        if node.op_type == "Add" and not (any(map(_is_constant, node.inputs)) or all(map(_is_product, node.inputs))):
            return None
        shapes = [() if _is_number(operand) else self.shape(operand) for operand in node.inputs]
        if None in shapes:
            return None
        rank = max(map(len, shapes))
        padded = [(ONE,) * (rank - len(shape)) + shape for shape in shapes]
        return tuple(
            self._met(sizes, (value or node.outputs[0], axis)) for axis, sizes in enumerate(zip(*padded, strict=True))
        )

    def _met(self, sizes: Shape, key: tuple[ir.Value, int]) -> Dim:
        """The size of an axis in which `sizes` meet; unknown where one of them may be 1."""
        sizes = tuple(size for size in map(self.dims.simplify, sizes) if size != ONE)
        for size in sizes:
            if size.constant is not None or all(other == size for other in sizes):
                return size
        return self.dims.unknown(key) if sizes else ONE

    def _reduced(self, node: ir.Node, axes: tuple[int, ...]) -> Shape | None:
        shape = self.shape(node.inputs[0])
        if not shape or not axes:
            return None
        reduced = {axis % len(shape) for axis in axes}
        keep = attribute(node, "keepdims", 1)
        return tuple(ONE if axis in reduced else dim for axis, dim in enumerate(shape) if keep or axis not in reduced)

    def _arg_max(self, node: ir.Node) -> Shape | None:
        return self._reduced(node, (attribute(node, "axis", 0),))

    def _top_k(self, node: ir.Node) -> Shape | None:
        shape = self.shape(node.inputs[0])
        k = self.integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if not shape or k is None or len(k.items) != 1:
            return None
        axis = attribute(node, "axis", -1) % len(shape)
        return (*shape[:axis], k.items[0], *shape[axis + 1 :])

    def _gather_elements(self, node: ir.Node) -> Shape | None:
        return self.shape(node.inputs[1])

    def _concat(self, node: ir.Node) -> Shape | None:
        """The operator fails unless all axes but one agree; along that one the sum is known only if all sizes are."""
        shapes = [self.shape(operand) for operand in node.inputs]
        if not all(shapes) or len({len(shape) for shape in shapes}) != 1:
            return None
        axis = attribute(node, "axis", 0) % len(shapes[0])
        for other in shapes[1:]:
            for place, pair in enumerate(zip(shapes[0], other, strict=True)):
                if place != axis:
                    self.dims.equate(*pair)
        sizes = [self.dims.simplify(shape[axis]).constant for shape in shapes]
        total = self.dims.unknown((node.outputs[0], axis)) if None in sizes else Dim(sum(sizes))
        return tuple(total if place == axis else self.dims.simplify(size) for place, size in enumerate(shapes[0]))

    def _gemm(self, node: ir.Node) -> Shape | None:
        left, right = self.shape(node.inputs[0]), self.shape(node.inputs[1])
        if left is None or right is None or len(left) != 2 or len(right) != 2:
            return None
        return left[1 if attribute(node, "transA", 0) else 0], right[0 if attribute(node, "transB", 0) else 1]

    def _unsqueeze(self, node: ir.Node) -> Shape | None:
        shape, axes = self.shape(node.inputs[0]), axes_of(node)
        if shape is None or axes is None:
            return None
        rank = len(shape) + len(axes)
        return unsqueezed(shape, axes, ONE) if len({axis % rank for axis in axes}) == len(axes) else None

    def _squeeze(self, node: ir.Node) -> Shape | None:
        shape, axes = self.shape(node.inputs[0]), axes_of(node)
        if shape is None or axes is None:
            return None
        dropped = {axis % len(shape) for axis in axes}
        return tuple(dim for axis, dim in enumerate(shape) if axis not in dropped)

    def _flatten(self, node: ir.Node) -> Shape | None:
        shape = self.shape(node.inputs[0])
        if shape is None:
            return None
        axis = attribute(node, "axis", 1)
        axis = axis if axis >= 0 else axis + len(shape)
        return product(shape[:axis]), product(shape[axis:])

    def _reshape(self, node: ir.Node) -> Shape | None:
        shape, target = self.shape(node.inputs[0]), self.integers(node.inputs[1])
        if shape is None or target is None or (attribute(node, "allowzero", 0) and Dim(0) in target.items):
            return None
        return self.reshaped(shape, target.items)

    def _transpose(self, node: ir.Node) -> Shape | None:
        shape = self.shape(node.inputs[0])
        if shape is None:
            return None
        return tuple(shape[axis] for axis in attribute(node, "perm", range(len(shape))[::-1]))

    def _expand(self, node: ir.Node) -> Shape | None:
        shape, target = self.shape(node.inputs[0]), self.integers(node.inputs[1])
        return None if shape is None or target is None else self.broadcast(shape, target.items)

    def broadcast(self, left: Shape, right: Shape) -> Shape | None:
        """The shape of two broadcast together, where it is certain."""
        rank = max(len(left), len(right))
        left, right = (ONE,) * (rank - len(left)) + left, (ONE,) * (rank - len(right)) + right
        joined = []
        for a, b in zip(left, right, strict=True):
            if not (self.dims.same(a, b) or ONE in (a, b)):
                return None
            joined.append(b if a == ONE else a)
        return tuple(joined)

    def _slice(self, node: ir.Node) -> Shape | None:
        return self._slice_of_known(node) or self._slice_of_unknown(node)

    def _slice_of_known(self, node: ir.Node) -> Shape | None:
        """Of axes with constant sizes."""
        shape = self.shape(node.inputs[0])
        cuts = shape and slice_cuts(node, [self.dims.simplify(size).constant for size in shape], self._numbers)
        return cuts and tuple(Dim(len(cuts[axis])) if axis in cuts else size for axis, size in enumerate(shape))

    def _numbers(self, value: ir.Value) -> list[int] | None:
        found = self.integers(value)
        numbers = [] if found is None else [item.constant for item in found.items]
        return None if found is None or None in numbers else numbers

    def _split(self, node: ir.Node, value: ir.Value) -> Shape | None:
        """Of an axis with a constant size."""
        shape = self.shape(node.inputs[0])
        axis = attribute(node, "axis", 0) % len(shape or (None,))
        size = self.dims.simplify(shape[axis]).constant if shape else None
        sizes = None if size is None else split_sizes(node, size)
        return sizes and (*shape[:axis], Dim(sizes[node.outputs.index(value)]), *shape[axis + 1 :])

    def _slice_of_unknown(self, node: ir.Node) -> Shape | None:
        """Only slices that keep an axis whole or keep its first element (what an exporter writes for ``x[:1]``)."""
        shape = self.shape(node.inputs[0])
        starts, ends = (small_constant(node.inputs[i]) if len(node.inputs) > i else None for i in (1, 2))
        if shape is None or starts is None or ends is None:
            return None
        axes = small_constant(node.inputs[3]) if len(node.inputs) > 3 else range(len(starts))
        steps = small_constant(node.inputs[4]) if len(node.inputs) > 4 else [1] * len(starts)
        if axes is None or steps is None or any(step != 1 for step in steps) or any(start != 0 for start in starts):
            return None
        result = list(shape)
        for axis, end in zip(axes, ends, strict=True):
            if end == 1:
                # Of an empty axis this keeps nothing: then every use of it is empty too, and nothing is computed.
                result[axis] = ONE
            elif end < 2**31 - 1:
                return None
        return tuple(result)

    def _matrix_product(self, node: ir.Node) -> Shape | None:
        left, right = self.shape(node.inputs[0]), self.shape(node.inputs[1])
        if not left or right is None or len(right) < 2:
            return None
        if len(right) == 2:
            return *left[:-1], right[1]
        batch = self.broadcast(left[:-2], right[:-2])
        return None if batch is None else (*batch, left[-2], right[-1])

    def _constant_of_shape(self, node: ir.Node) -> Shape | None:
        found = self.integers(node.inputs[0])
        return None if found is None else found.items

    # ---- integers

    def _constant_integers(self, value: ir.Value) -> Integers | None:
        array = small_constant(value)
        if array is None or array.dtype.kind not in "iu" or array.ndim > 1:
            return None
        return Integers(tuple(Dim(int(item)) for item in array.reshape(-1)), array.ndim == 0)

    def _computed_integers(self, value: ir.Value) -> Integers | None:
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        rule = _INTEGER_RULES.get(node.op_type)
        return None if rule is None else rule(self, node)

    def _shape_operator(self, node: ir.Node) -> Integers | None:
        vector = self.integers(node.inputs[0])
        shape = self.shape(node.inputs[0]) if vector is None else () if vector.is_scalar else (Dim(len(vector.items)),)
        if shape is None:
            return None
        return Integers(shape[attribute(node, "start", 0) : attribute(node, "end", None)], False)

    def _gather_integers(self, node: ir.Node) -> Integers | None:
        data, index = self.integers(node.inputs[0]), small_constant(node.inputs[1])
        if data is None or data.is_scalar or index is None or index.ndim > 1:
            return None
        positions = [int(i) for i in index.reshape(-1)]
        if any(not -len(data.items) <= i < len(data.items) for i in positions):
            return None
        return Integers(tuple(data.items[i] for i in positions), index.ndim == 0)

    def _slice_integers(self, node: ir.Node) -> Integers | None:
        data = self.integers(node.inputs[0])
        bounds = [small_constant(operand) for operand in node.inputs[1:3]]
        if data is None or any(bound is None or bound.size != 1 for bound in bounds) or len(node.inputs) > 4:
            return None
        return Integers(data.items[int(bounds[0].item()) : int(bounds[1].item())], False)

    def _concat_integers(self, node: ir.Node) -> Integers | None:
        parts = [self.integers(operand) for operand in node.inputs]
        if any(part is None or part.is_scalar for part in parts):
            return None
        return Integers(tuple(item for part in parts for item in part.items), False)

    def _same_integers(self, node: ir.Node) -> Integers | None:
        return self.integers(node.inputs[0])

    def _as_vector(self, node: ir.Node) -> Integers | None:
        """Unsqueeze of a scalar."""
        found = self.integers(node.inputs[0])
        return Integers(found.items, False) if found is not None and found.is_scalar else None

    def _as_scalar(self, node: ir.Node) -> Integers | None:
        """Squeeze of a vector of one."""
        found = self.integers(node.inputs[0])
        return Integers(found.items, True) if found is not None and len(found.items) == 1 else None

    def _reshape_integers(self, node: ir.Node) -> Integers | None:
        found, target = self.integers(node.inputs[0]), self.integers(node.inputs[1])
        if found is None or target is None or len(target.items) > 1:
            return None
        return Integers(found.items, not target.items)

    def _calculate(self, node: ir.Node) -> Integers | None:
        """Sums, differences and quotients of constants; a sum of sizes is a size, too."""
        operands = self._broadcast_integers(node)
        if operands is None:
            return None
        items = []
        for place, (a, b) in enumerate(zip(*operands[0], strict=True)):
            if a.constant is None or b.constant is None:
                if node.op_type != "Add" or a.factor < 0 or b.factor < 0:
                    return None
                items.append(self.dims.unknown((node.outputs[0], "sum", place)))
                continue
            if node.op_type == "Div" and b.constant <= 0 or a.constant < 0:
                return None
            items.append(Dim(_ARITHMETIC[node.op_type](a.constant, b.constant)))
        return Integers(tuple(items), operands[1])

    def _multiply_integers(self, node: ir.Node) -> Integers | None:
        operands = self._broadcast_integers(node)
        return operands and Integers(tuple(product(pair) for pair in zip(*operands[0], strict=True)), operands[1])

    def _broadcast_integers(self, node: ir.Node) -> tuple[list[tuple[Dim, ...]], bool] | None:
        """The operands' items, as many of each, and whether they are scalars."""
        operands = [self.integers(operand) for operand in node.inputs]
        if None in operands:
            return None
        length = max(len(operand.items) for operand in operands)
        if any(len(operand.items) not in (1, length) for operand in operands):
            return None
        items = [operand.items * (length if len(operand.items) == 1 else 1) for operand in operands]
        return items, all(operand.is_scalar for operand in operands)

    def _filled_integers(self, node: ir.Node) -> Integers | None:
        """ConstantOfShape: a vector of equal integers."""
        length = self.integers(node.inputs[0])
        fill = attribute(node, "value", None)
        if length is None or len(length.items) != 1 or fill is None or not fill.dtype.is_integer():
            return None
        count = length.items[0].constant
        if count is None or count > LARGEST_SMALL_CONSTANT:
            return None
        return Integers((Dim(int(fill.numpy().item())),) * count, False)

    def _equal_integers(self, node: ir.Node) -> Integers | None:
        """1 and 0 for true and false, where every comparison is certain: sizes are never negative."""
        operands = self._broadcast_integers(node)
        if operands is None:
            return None
        results = [self._equal(left, right) for left, right in zip(*operands[0], strict=True)]
        return None if None in results else Integers(tuple(Dim(int(result)) for result in results), operands[1])

    def _equal(self, left: Dim, right: Dim) -> bool | None:
        left, right = self.dims.simplify(left), self.dims.simplify(right)
        if left == right:
            return True
        negative = [dim.constant is not None and dim.constant < 0 for dim in (left, right)]
        sizes = [dim.constant is None and dim.factor > 0 for dim in (left, right)]
        certain = (left.constant is not None and right.constant is not None) or any(negative) and any(sizes)
        return False if certain else None

    def _where_integers(self, node: ir.Node) -> Integers | None:
        operands = self._broadcast_integers(node)
        if operands is None or any(condition.constant not in (0, 1) for condition in operands[0][0]):
            return None
        items = tuple(left if condition.constant else right for condition, left, right in zip(*operands[0], strict=True))
        return Integers(items, operands[1])


def _is_number(value: ir.Value) -> bool:
    """Whether `value` is one constant, without axes or in a vector of one: it changes no shape that it is broadcast to."""
    array = small_constant(value)
    return array is not None and array.size == 1 and array.ndim <= 1


def _is_product(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "Mul" and is_standard(node)


def _is_constant(value: ir.Value) -> bool:
    """Whether `value` is an initializer, or one number, or a view of an initializer."""
    node = value.producer()
    while node is not None and node.op_type in _CONSTANT_VIEWS and is_standard(node):
        value = node.inputs[0]
        node = value.producer()
    return _is_number(value) or initializer_tensor(value) is not None


def unsqueezed(items: tuple, axes: tuple[int, ...], one) -> tuple:
    """`items` with `one` inserted at `axes` (which count positions of the result)."""
    rank = len(items) + len(axes)
    inserted = {axis % rank for axis in axes}
    rest = iter(items)
    return tuple(one if axis in inserted else next(rest) for axis in range(rank))


_SHAPE_RULES = {
    "Unsqueeze": Shapes._unsqueeze,
    "Squeeze": Shapes._squeeze,
    "Flatten": Shapes._flatten,
    "Reshape": Shapes._reshape,
    "Transpose": Shapes._transpose,
    "Expand": Shapes._expand,
    "MatMul": Shapes._matrix_product,
    "Gemm": Shapes._gemm,
    "TopK": Shapes._top_k,
    "ArgMax": Shapes._arg_max,
    "GatherElements": Shapes._gather_elements,
    "Where": Shapes._broadcast_operands,
    "Concat": Shapes._concat,
    "Slice": Shapes._slice,
    "ConstantOfShape": Shapes._constant_of_shape,
    "Constant": Shapes._constant,
    "Gather": Shapes._gather,
    "Einsum": Shapes._einsum,
}
_ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Div": operator.floordiv}
_INTEGER_RULES = {
    "Add": Shapes._calculate,
    "Sub": Shapes._calculate,
    "Div": Shapes._calculate,
    "Shape": Shapes._shape_operator,
    "Gather": Shapes._gather_integers,
    "Slice": Shapes._slice_integers,
    "Concat": Shapes._concat_integers,
    "Identity": Shapes._same_integers,
    "Cast": Shapes._same_integers,
    "Unsqueeze": Shapes._as_vector,
    "Squeeze": Shapes._as_scalar,
    "Reshape": Shapes._reshape_integers,
    "Mul": Shapes._multiply_integers,
    "ConstantOfShape": Shapes._filled_integers,
    "Equal": Shapes._equal_integers,
    "Where": Shapes._where_integers,
}
