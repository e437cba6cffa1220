"""What one element of a computed tensor is, as an expression in its position: for proving what a mask lets through.

`Tensors.element(mask, (b, h, q, k))` walks back from a mask to the model's inputs and answers with the condition under
which the mask holds, whatever operators move the elements on the way: Range, Unsqueeze, Expand, Gather of a flattened
mask, Trilu, ScatterND of everything. What is not understood raises `NotUnderstood`; nothing is ever guessed.

Two assumptions, both part of what a model's inputs mean: the elements of an attention mask are 0 or 1; and sizes that meet
in one operator are equal (none is 1 by chance, and broadcast).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .constants import attribute, axes_of, initializer_tensor, is_standard, small_constant
from .formulas import (
    And,
    AtLeastZero,
    Condition,
    Formula,
    Not,
    Seen,
    at_least_zero,
    choice,
    conjunction,
    disjunction,
    equivalent,
    negation,
)
from .polynomials import ONE, ZERO, Polynomial, number, parse, product, unknown
from .router_expressions import said

Sizes = tuple[Polynomial, ...]
Index = tuple[Polynomial, ...]


class NotUnderstood(Exception):
    """Which operator, in words."""


@dataclass(frozen=True)
class Either:
    """`then` where `condition` holds, otherwise `otherwise`."""

    condition: Formula
    then: Element
    otherwise: Element


Element = Polynomial | float | Either | bool | AtLeastZero | Seen | Not | And
"""Of integers a polynomial, of floating-point numbers a float, of booleans a formula; or one of two of these."""

_FORMULAS = (bool, AtLeastZero, Seen, Not, And)
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
_VIEWS = frozenset({"Identity", "Dropout"})


class Tensors:
    """Answers for one graph, which must not change meanwhile."""

    def __init__(self) -> None:
        self._sizes: dict[ir.Value, Sizes | str] = {}
        """By value: its dimensions, or why they are unknown."""
        self._known: dict[str, Polynomial] = {}
        self._bounds: dict[str, Polynomial] = {}
        """Of each position: what it is below."""
        self._least: dict[str, Polynomial] = {}
        """Of some sizes: what they are at least. Of others, as of all sizes: 0."""
        self._elements: dict[tuple[ir.Value, Index], Element] = {}

    # ---- sizes

    def simplified(self, value: Polynomial) -> Polynomial:
        while True:
            simpler = value.with_values(self._known)
            if simpler == value:
                return value
            value = simpler

    def same(self, left: Polynomial, right: Polynomial) -> bool:
        return self.simplified(left) == self.simplified(right)

    def equate(self, left: Polynomial, right: Polynomial) -> None:
        """Both are one size: an unknown of one is known from the other."""
        left, right = self.simplified(left), self.simplified(right)
        difference = left - right
        if not difference.terms:
            return
        for one, other in ((left, right), (right, left)):
            if one.name is not None and one.name not in other.unknowns():
                self._known[one.name] = other
                return
        for names, factor in difference.terms:
            if len(names) == 1 and abs(factor) == 1:
                rest = difference - Polynomial(((names, factor),))
                if names[0] not in rest.unknowns():
                    self._known[names[0]] = -rest if factor == 1 else rest
                    return

    def sizes(self, value: ir.Value) -> Sizes:
        """The dimensions of `value`.

        Raises:
            NotUnderstood: their number is unknown.
        """
        if value not in self._sizes:
            self._sizes[value] = self._found_sizes(value)
        found = self._sizes[value]
        if isinstance(found, str):
            raise NotUnderstood(found)
        return tuple(self.simplified(size) for size in found)

    def _found_sizes(self, value: ir.Value) -> Sizes | str:
        node = value.producer()
        reason = f"the shape of {value.name!r} is unknown" if node is None else _unknown_operator(node)
        try:
            found = self._computed(value)
        except NotUnderstood as why:
            found, reason = None, str(why)
        return found if found is not None else self._annotated(value) if value.shape is not None else reason

    def _annotated(self, value: ir.Value) -> Sizes | None:
        if value.shape is None:
            return None
        return tuple(
            number(size) if isinstance(size, int) else parse(size.value) if size.value else unknown(f"{value.name}#{axis}")
            for axis, size in enumerate(value.shape)
        )

    def _computed(self, value: ir.Value) -> Sizes | None:
        node = value.producer()
        constant = small_constant(value)
        if constant is not None:
            return tuple(map(number, constant.shape))
        if node is None:
            tensor = initializer_tensor(value)
            return None if tensor is None else tuple(number(int(size)) for size in tensor.shape)
        rule = _SIZES.get(node.op_type) if is_standard(node) and value is node.outputs[0] else None
        if rule is None:
            return None
        with _shapes_that_fit(node):
            return rule(self, node)

    def broadcast(self, *shapes: Sizes) -> Sizes:
        rank = max(map(len, shapes))
        padded = [(ONE,) * (rank - len(shape)) + shape for shape in shapes]
        return tuple(self._met(sizes) for sizes in zip(*padded, strict=True))

    def _met(self, sizes: Sizes) -> Polynomial:
        """What sizes that meet come to."""
        rest = [size for size in sizes if size != ONE]
        for size in rest[1:]:
            self.equate(rest[0], size)
        return self.simplified(rest[0]) if rest else ONE

    def integers(self, value: ir.Value | None) -> tuple[Polynomial, ...]:
        """The elements of a small vector (or scalar) of integers.

        Raises:
            NotUnderstood: it is neither, or of unknown length.
        """
        if value is None:
            raise NotUnderstood("an input is missing")
        sizes = self.sizes(value)
        length = ONE.constant if not sizes else sizes[0].constant
        if len(sizes) > 1 or length is None or length > 64:
            raise NotUnderstood(f"{value.name!r} is no small vector")
        return tuple(self._integer(value, (number(i),) if sizes else ()) for i in range(length))

    def _integer(self, value: ir.Value, index: Index) -> Polynomial:
        found = self.element(value, index)
        if not isinstance(found, Polynomial):
            raise NotUnderstood(f"{value.name!r} is no integer that could be worked out")
        return self.simplified(found)

    # ---- elements

    def position(self, name: str, size: Polynomial) -> Polynomial:
        """A new position that runs from 0 to `size`, without it."""
        name = f"{name}@{len(self._bounds)}"
        self._bounds[name] = size
        return unknown(name)

    def element(self, value: ir.Value, index: Index) -> Element:
        """The element of `value` at `index`.

        Raises:
            NotUnderstood: something on the way is not.
        """
        key = (value, index)
        if key not in self._elements:
            self._elements[key] = self._worked_out(value, index)
        return self._elements[key]

    def _worked_out(self, value: ir.Value, index: Index) -> Element:
        node = value.producer()
        constant = small_constant(value)
        if constant is not None:
            return _constant_element(constant, index)
        if node is None:
            return self._input_element(value, index)
        if not is_standard(node) or value is not node.outputs[0] or node.op_type not in _ELEMENTS:
            raise NotUnderstood(_unknown_operator(node))
        with _shapes_that_fit(node):
            return _ELEMENTS[node.op_type](self, node, index)

    def _input_element(self, value: ir.Value, index: Index) -> Element:
        types = (ir.DataType.BOOL, *_INTEGERS)
        if not value.is_graph_input() or value.dtype not in types or len(index) != 2:
            raise NotUnderstood(f"the mask depends on {value.name!r}")
        seen = Seen(value, *(self.simplified(i) for i in index))
        return seen if value.dtype == ir.DataType.BOOL else Either(seen, ONE, ZERO)

    def operand(self, node: ir.Node, place: int, index: Index) -> Element:
        """The element of an input that is broadcast to the output's `index`."""
        value = node.inputs[place]
        sizes = self.sizes(value)
        taken = index[len(index) - len(sizes) :]
        return self.element(value, tuple(ZERO if size == ONE else i for i, size in zip(taken, sizes, strict=True)))

    def always_at_least_zero(self, value: Polynomial) -> bool:
        """Whether `value` is proved never to be negative, from what positions are below and sizes are at least."""
        value = self.simplified(value)
        for name, bound in self._bounds.items():
            factors = {factor > 0 for names, factor in value.terms if name in names}
            if len(factors) == 2:
                return False
            if factors:
                value = self.simplified(value.with_values({name: ZERO if factors == {True} else bound - ONE}))
        # Each size is its least value and something that is not negative; a least value names sizes said before it.
        for name, least in reversed(self._least.items()):
            value = value.with_values({name: unknown(name) + least})
        return all(factor >= 0 for _, factor in value.terms)

    def at_least(self, size: Polynomial, least: Polynomial) -> None:
        """Says that the unknown `size` is never less than `least`."""
        if size.name is not None:
            self._least.setdefault(size.name, least)

    def define(self, name: str, value: Polynomial, instead_of: Polynomial) -> Polynomial:
        """Makes `name` stand for the sum `value`, in which the unknown `instead_of` then no longer occurs: counting across
        axes divides by sizes, and divides by unknowns only."""
        total = unknown(name)
        self._known[instead_of.name] = total - (value - instead_of)
        return total

    def settled(self, formula: Formula) -> Formula:
        """With conditions that always hold, or never, replaced by true and false."""
        match formula:
            case AtLeastZero(value):
                value = self.simplified(value)
                if self.always_at_least_zero(value):
                    return True
                return False if self.always_at_least_zero(-value - ONE) else at_least_zero(value)
            case Not(operand):
                return negation(self.settled(operand))
            case And(left, right):
                return conjunction(self.settled(left), self.settled(right))
            case Seen(mask, row, column):
                return Seen(mask, self.simplified(row), self.simplified(column))
        return formula

    def equivalent(self, left: Formula, right: Formula) -> bool:
        """Whether both are proved to be true at the same positions."""
        return equivalent(left, right, self._excluded)

    def _excluded(self, a: Condition, a_holds: bool, b: Condition, b_holds: bool) -> bool:
        if not (isinstance(a, AtLeastZero) and isinstance(b, AtLeastZero)):
            return False
        one = a.value if a_holds else -a.value - ONE
        opposite = -b.value - ONE if b_holds else b.value
        return self.always_at_least_zero(opposite - one)  # one >= 0 makes the opposite of the other hold

    def moved(self, index: Index, sizes: Sizes, target: Sizes) -> Index:
        """The place in a tensor of `target` sizes of what lies at `index` in one of `sizes`: elements keep their order."""
        plain = [(i, size) for i, size in zip(index, sizes, strict=True) if size != ONE]
        wanted = [size for size in target if size != ONE]
        if len(plain) == len(wanted) and all(self.same(a, b) for (_, a), b in zip(plain, wanted, strict=True)):
            rest = iter([i for i, _ in plain])
            return tuple(ZERO if size == ONE else next(rest) for size in target)
        return self._unflattened(self._flattened(index, sizes), target)

    def _flattened(self, index: Index, sizes: Sizes) -> Polynomial:
        total = ZERO
        for i, size in zip(index, sizes, strict=True):
            total = total * size + i
        return self.simplified(total)

    def _unflattened(self, place: Polynomial, sizes: Sizes) -> Index:
        found = []
        for axis in range(len(sizes) - 1, -1, -1):
            if axis == 0:
                found.append(place)
                break
            split = (place, ZERO) if sizes[axis] == ONE else place.split_by(sizes[axis])
            if split is None or not self._lies_in(split[1], sizes[axis]):
                raise NotUnderstood("elements are counted across axes in a way that is not understood")
            place = split[0]
            found.append(split[1])
        return tuple(reversed(found))

    def _lies_in(self, place: Polynomial, size: Polynomial) -> bool:
        return self.always_at_least_zero(place) and self.always_at_least_zero(size - ONE - place)


@contextmanager
def _shapes_that_fit(node: ir.Node) -> Iterator[None]:
    """A graph in which an axis or a place does not exist is no graph that runs: rules need not look for that themselves."""
    try:
        yield
    except (IndexError, ValueError) as error:
        raise NotUnderstood(f"shapes do not fit at {said(node)}") from error


def _unknown_operator(node: ir.Node) -> str:
    return f"{said(node)} is not understood in a mask"


def _constant_element(array: np.ndarray, index: Index) -> Element:
    if array.size == 1 or (array.size and (array == array.flat[0]).all()):
        item = array.flat[0]
    else:
        places = [i.constant for i in index]
        if None in places or len(places) != array.ndim:
            raise NotUnderstood("a constant is read at a place that depends on the input")
        item = array[tuple(places)]
    if array.dtype.kind == "b":
        return bool(item)
    return number(int(item)) if array.dtype.kind in "iu" else float(item)


# ---- arithmetic


def lifted(function: Callable[..., Element], *operands: Element) -> Element:
    """`function` of all that the operands may be."""
    for place, operand in enumerate(operands):
        if isinstance(operand, Either):
            return _either(
                operand.condition,
                lifted(function, *operands[:place], operand.then, *operands[place + 1 :]),
                lifted(function, *operands[:place], operand.otherwise, *operands[place + 1 :]),
            )
    return function(*operands)


def _either(condition: Formula, then: Element, otherwise: Element) -> Element:
    if isinstance(condition, bool):
        return then if condition else otherwise
    if isinstance(then, _FORMULAS) and isinstance(otherwise, _FORMULAS):
        return choice(condition, then, otherwise)
    return then if then == otherwise else Either(condition, then, otherwise)


def as_formula(element: Element) -> Formula:
    """Whether the element is not 0."""
    if isinstance(element, Either):
        return choice(element.condition, as_formula(element.then), as_formula(element.otherwise))
    if isinstance(element, Polynomial):
        if element.constant is None:
            return negation(_equal(element, ZERO))
        return element.constant != 0
    return element if isinstance(element, _FORMULAS) else element != 0.0


def _numbers(*operands: Element) -> tuple:
    """Operands of one kind: floats if one of them is; of a polynomial that is no number there is no float."""
    if all(isinstance(operand, Polynomial) for operand in operands):
        return operands
    plain = [operand.constant if isinstance(operand, Polynomial) else operand for operand in operands]
    if any(isinstance(operand, _FORMULAS) or operand is None for operand in plain):
        raise NotUnderstood("numbers of different kinds meet")
    return tuple(float(operand) for operand in plain)


def _arithmetic(of_integers: Callable, of_floats: Callable) -> Callable[[Element, Element], Element]:
    def apply(left: Element, right: Element) -> Element:
        left, right = _numbers(left, right)
        if isinstance(left, Polynomial):
            return of_integers(left, right)
        result = of_floats(left, right)
        if math.isnan(result):
            raise NotUnderstood("the mask computes what is not a number")
        return result

    return apply


def _floor_divide(left: Polynomial, right: Polynomial) -> Polynomial:
    if left.constant is not None and right.constant and left.constant >= 0 and right.constant > 0:
        return number(left.constant // right.constant)
    split = left.split_by(right)
    if split is None or split[1].terms:
        raise NotUnderstood("integers are divided, with a remainder that is not understood")
    return split[0]


def _larger(left: Polynomial, right: Polynomial) -> Element:
    return _either(at_least_zero(left - right), left, right)


def _smaller(left: Polynomial, right: Polynomial) -> Element:
    return _either(at_least_zero(left - right), right, left)


def _equal(left: Element, right: Element) -> Formula:
    if isinstance(left, _FORMULAS) and isinstance(right, _FORMULAS):
        return choice(left, right, negation(right))
    left, right = _numbers(left, right)
    if isinstance(left, Polynomial):
        return conjunction(at_least_zero(left - right), at_least_zero(right - left))
    return left == right


def _comparison(
    of_difference: Callable[[Polynomial], Formula], of_floats: Callable
) -> Callable[[Element, Element], Formula]:
    def apply(left: Element, right: Element) -> Formula:
        left, right = _numbers(left, right)
        return of_difference(left - right) if isinstance(left, Polynomial) else of_floats(left, right)

    return apply


_BINARY: dict[str, Callable[[Element, Element], Element]] = {
    "Add": _arithmetic(lambda a, b: a + b, lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "Div": _arithmetic(_floor_divide, lambda a, b: a / b if b else math.nan),
    "Max": _arithmetic(_larger, max),
    "Min": _arithmetic(_smaller, min),
    "And": conjunction,
    "Or": disjunction,
    "Equal": _equal,
    "GreaterOrEqual": _comparison(at_least_zero, lambda a, b: a >= b),
    "Greater": _comparison(lambda d: at_least_zero(d - ONE), lambda a, b: a > b),
    "LessOrEqual": _comparison(lambda d: at_least_zero(-d), lambda a, b: a <= b),
    "Less": _comparison(lambda d: at_least_zero(-d - ONE), lambda a, b: a < b),
}


def _binary(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    if len(node.inputs) != 2:
        raise NotUnderstood(f"{node.op_type} of {len(node.inputs)} values is not understood in a mask")
    tensors.sizes(node.outputs[0])  # the operands' sizes meet here
    return lifted(_BINARY[node.op_type], tensors.operand(node, 0, index), tensors.operand(node, 1, index))


def _not(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return negation(as_formula(tensors.element(node.inputs[0], index)))


def _negative(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return lifted(lambda value: -_numbers(value)[0], tensors.element(node.inputs[0], index))


def _where(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    tensors.sizes(node.outputs[0])
    condition = tensors.settled(as_formula(tensors.operand(node, 0, index)))
    if isinstance(condition, bool):
        return tensors.operand(node, 1 if condition else 2, index)
    return _either(condition, tensors.operand(node, 1, index), tensors.operand(node, 2, index))


def _cast(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    element = tensors.element(node.inputs[0], index)
    target = ir.DataType(attribute(node, "to", 0))
    if target == ir.DataType.BOOL:
        return as_formula(element)
    if isinstance(element, _FORMULAS):
        element = _either(element, ONE, ZERO)
    if target in _INTEGERS:
        return lifted(_to_integer, element)
    return element if isinstance(element, Polynomial) and element.constant is None else lifted(_to_float, element)


def _to_integer(value: Element) -> Element:
    if isinstance(value, Polynomial):
        return value
    if not isinstance(value, float) or not value.is_integer() or abs(value) > 2**31:
        raise NotUnderstood("a mask is cast to integers in a way that is not understood")
    return number(int(value))


def _to_float(value: Element) -> Element:
    return value if not isinstance(value, Polynomial) or value.constant is None else float(value.constant)


# ---- views


def _same_place(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    return tensors.element(node.inputs[0], index)


def _view(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """Reshape, Flatten, Unsqueeze, Squeeze: the same order of elements."""
    inner, outer = tensors.sizes(node.inputs[0]), tensors.sizes(node.outputs[0])
    return tensors.element(node.inputs[0], tensors.moved(index, outer, inner))


def _expand(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    tensors.sizes(node.outputs[0])
    return tensors.operand(node, 0, index)


def _transpose(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    order = attribute(node, "perm", tuple(reversed(range(len(index)))))
    inner: list[Polynomial] = [ZERO] * len(index)
    for place, axis in enumerate(order):
        inner[axis] = index[place]
    return tensors.element(node.inputs[0], tuple(inner))


def _slice_starts(tensors: Tensors, node: ir.Node) -> dict[int, tuple[Polynomial, Polynomial]]:
    """By axis: where a Slice begins, and how many it keeps. Steps are 1."""
    inner = tensors.sizes(node.inputs[0])
    starts, ends = tensors.integers(node.inputs[1]), tensors.integers(node.inputs[2])
    given = [node.inputs[i] if len(node.inputs) > i else None for i in (3, 4)]
    axes = [i.constant for i in tensors.integers(given[0])] if given[0] is not None else list(range(len(starts)))
    if given[1] is not None and any(step != ONE for step in tensors.integers(given[1])):
        raise NotUnderstood("a Slice takes steps")
    cuts = {}
    for start, end, axis in zip(starts, ends, axes, strict=True):
        size = inner[axis]
        begin, finish = (tensors.simplified(_bound(bound, size)) for bound in (start, end))
        if not tensors.always_at_least_zero(begin):
            raise NotUnderstood("a Slice may begin before its axis")
        if finish.constant is not None and size.constant is not None:
            finish = number(min(finish.constant, size.constant))
        elif finish.constant is not None and finish.constant >= 2**31 - 1:
            finish = size
        elif not tensors.same(finish, size):
            # It may be that there are no more than the end says: then this is the size of the axis.
            if tensors.always_at_least_zero(finish - size):
                finish = size
            elif not tensors.always_at_least_zero(size - finish):
                raise NotUnderstood("where a Slice ends is not understood")
        cuts[axis % len(inner)] = (begin, finish - begin)
    return cuts


def _bound(bound: Polynomial, size: Polynomial) -> Polynomial:
    return size + bound if bound.constant is not None and -(2**31) < bound.constant < 0 else bound


def _slice(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    cuts = _slice_starts(tensors, node)
    return tensors.element(node.inputs[0], tuple(i + cuts[axis][0] if axis in cuts else i for axis, i in enumerate(index)))


def _sizes_of_slice(tensors: Tensors, node: ir.Node) -> Sizes:
    cuts = _slice_starts(tensors, node)
    return tuple(cuts[axis][1] if axis in cuts else size for axis, size in enumerate(tensors.sizes(node.inputs[0])))


def _concat(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    axis = attribute(node, "axis", 0) % len(index)
    place = index[axis].constant
    if place is None:
        raise NotUnderstood("a Concat is read at a place that depends on the input")
    for value in node.inputs:
        length = tensors.sizes(value)[axis].constant
        if length is None:
            break
        if place < length:
            return tensors.element(value, (*index[:axis], number(place), *index[axis + 1 :]))
        place -= length
    raise NotUnderstood("a Concat of unknown lengths is not understood")


def _sizes_of_concat(tensors: Tensors, node: ir.Node) -> Sizes:
    shapes = [tensors.sizes(value) for value in node.inputs]
    axis = attribute(node, "axis", 0) % len(shapes[0])
    total = ZERO
    for shape in shapes:
        total = total + shape[axis]
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


# ---- gathers


def _gather(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(data)
    inside = index[axis : axis + len(indices)]
    inside = tuple(ZERO if size == ONE else i for i, size in zip(inside, indices, strict=True))
    place = _not_negative(tensors._integer(node.inputs[1], inside), data[axis])
    return tensors.element(node.inputs[0], (*index[:axis], place, *index[axis + len(indices) :]))


def _not_negative(place: Polynomial, size: Polynomial) -> Polynomial:
    return size + place if place.constant is not None and place.constant < 0 else place


def _sizes_of_gather(tensors: Tensors, node: ir.Node) -> Sizes:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(data)
    return (*data[:axis], *indices, *data[axis + 1 :])


def _gather_nd(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    width = indices[-1].constant
    if attribute(node, "batch_dims", 0) or width is None:
        raise NotUnderstood("GatherND with batch dimensions is not understood")
    outer = tuple(ZERO if size == ONE else i for i, size in zip(index[: len(indices) - 1], indices[:-1], strict=True))
    places = tuple(tensors._integer(node.inputs[1], (*outer, number(i))) for i in range(width))
    places = tuple(_not_negative(place, size) for place, size in zip(places, data[:width], strict=True))
    return tensors.element(node.inputs[0], (*places, *index[len(indices) - 1 :]))


def _sizes_of_gather_nd(tensors: Tensors, node: ir.Node) -> Sizes:
    data, indices = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[1])
    width = indices[-1].constant
    if width is None or attribute(node, "batch_dims", 0):
        raise NotUnderstood("GatherND is not understood")
    return (*indices[:-1], *data[width:])


def _scatter_nd(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """Only where the updates replace everything, each at its own place."""
    data, updates = tensors.sizes(node.inputs[0]), tensors.sizes(node.inputs[2])
    if attribute(node, "reduction", "none") != "none" or len(updates) != len(data):
        raise NotUnderstood("ScatterND of a part is not understood")
    if not all(tensors.same(a, b) for a, b in zip(data, updates, strict=True)):
        raise NotUnderstood("ScatterND of a part is not understood")
    place = tuple(tensors.position("p", size) if size != ONE else ZERO for size in data)
    indices = tensors.sizes(node.inputs[1])
    if indices[-1].constant != len(data):
        raise NotUnderstood("ScatterND of a part is not understood")
    for axis, expected in enumerate(place):
        if not tensors.same(tensors._integer(node.inputs[1], (*place, number(axis))), expected):
            raise NotUnderstood("ScatterND moves elements")
    return tensors.element(node.inputs[2], index)


# ---- makers


def _range(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    start, _, step = (tensors._integer(value, _only(tensors, value)) for value in node.inputs)
    return start + index[0] * step


def _only(tensors: Tensors, value: ir.Value) -> Index:
    return (ZERO,) * len(tensors.sizes(value))


def _sizes_of_range(tensors: Tensors, node: ir.Node) -> Sizes:
    start, limit, step = (tensors._integer(value, _only(tensors, value)) for value in node.inputs)
    if step != ONE:
        raise NotUnderstood("a Range takes steps")
    return (limit - start,)


def _shape(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    sizes = tensors.sizes(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end", None)]
    place = index[0].constant
    if place is None:
        raise NotUnderstood("a shape is read at a place that depends on the input")
    return sizes[place]


def _sizes_of_shape(tensors: Tensors, node: ir.Node) -> Sizes:
    return (number(len(tensors.sizes(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end", None)])),)


def _filled(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    fill = attribute(node, "value", None)
    return 0.0 if fill is None else _constant_element(fill.numpy(), ())


def _sizes_of_filled(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.integers(node.inputs[0])


def _trilu(tensors: Tensors, node: ir.Node, index: Index) -> Element:
    """The upper triangle keeps column >= row + k, the lower one column <= row + k; 0 elsewhere."""
    diagonal = tensors._integer(node.inputs[1], _only(tensors, node.inputs[1])) if len(node.inputs) > 1 else ZERO
    ahead = index[-1] - index[-2] - diagonal
    kept = at_least_zero(ahead if attribute(node, "upper", 1) else -ahead)
    inner = tensors.element(node.inputs[0], index)
    nothing: Element = False if isinstance(inner, _FORMULAS) else ZERO if isinstance(inner, Polynomial) else 0.0
    return _either(kept, inner, nothing)


# ---- sizes of the rest


def _sizes_like_first(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.sizes(node.inputs[0])


def _sizes_met(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.broadcast(*(tensors.sizes(value) for value in node.inputs))


def _sizes_of_unsqueeze(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, axes = tensors.sizes(node.inputs[0]), axes_of(node)
    if axes is None:
        raise NotUnderstood("the axes of Unsqueeze are not constant")
    rank = len(inner) + len(axes)
    inserted, rest = {axis % rank for axis in axes}, iter(inner)
    return tuple(ONE if axis in inserted else next(rest) for axis in range(rank))


def _sizes_of_squeeze(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, axes = tensors.sizes(node.inputs[0]), axes_of(node)
    if axes is None:
        if len(node.inputs) > 1 or any(size.constant is None for size in inner):
            raise NotUnderstood("the axes of Squeeze are not constant")
        return tuple(size for size in inner if size != ONE)
    dropped = {axis % len(inner) for axis in axes}
    return tuple(size for axis, size in enumerate(inner) if axis not in dropped)


def _sizes_of_reshape(tensors: Tensors, node: ir.Node) -> Sizes:
    inner, target = tensors.sizes(node.inputs[0]), list(tensors.integers(node.inputs[1]))
    if not attribute(node, "allowzero", 0):
        target = [inner[axis] if size == ZERO else size for axis, size in enumerate(target)]
    if number(-1) not in target:
        return tuple(target)
    place = target.index(number(-1))
    split = product(inner).split_by(product(target[:place] + target[place + 1 :]))
    if split is None or split[1].terms:
        raise NotUnderstood("a Reshape leaves a size that is not understood")
    return (*target[:place], split[0], *target[place + 1 :])


def _sizes_of_flatten(tensors: Tensors, node: ir.Node) -> Sizes:
    inner = tensors.sizes(node.inputs[0])
    axis = attribute(node, "axis", 1)
    axis = axis if axis >= 0 else axis + len(inner)
    return product(inner[:axis]), product(inner[axis:])


def _sizes_of_transpose(tensors: Tensors, node: ir.Node) -> Sizes:
    inner = tensors.sizes(node.inputs[0])
    return tuple(inner[axis] for axis in attribute(node, "perm", tuple(reversed(range(len(inner))))))


def _sizes_of_expand(tensors: Tensors, node: ir.Node) -> Sizes:
    return tensors.broadcast(tensors.sizes(node.inputs[0]), tensors.integers(node.inputs[1]))


_LIKE_FIRST = ("Identity", "Cast", "Not", "Neg", "Trilu", "ScatterND", "Dropout")
_SIZES: dict[str, Callable[[Tensors, ir.Node], Sizes]] = {
    **dict.fromkeys(_LIKE_FIRST, _sizes_like_first),
    **dict.fromkeys((*_BINARY, "Where"), _sizes_met),
    "Unsqueeze": _sizes_of_unsqueeze,
    "Squeeze": _sizes_of_squeeze,
    "Reshape": _sizes_of_reshape,
    "Flatten": _sizes_of_flatten,
    "Transpose": _sizes_of_transpose,
    "Expand": _sizes_of_expand,
    "Slice": _sizes_of_slice,
    "Concat": _sizes_of_concat,
    "Gather": _sizes_of_gather,
    "GatherND": _sizes_of_gather_nd,
    "Range": _sizes_of_range,
    "Shape": _sizes_of_shape,
    "ConstantOfShape": _sizes_of_filled,
}
_ELEMENTS: dict[str, Callable[[Tensors, ir.Node, Index], Element]] = {
    **dict.fromkeys(_BINARY, _binary),
    "Identity": _same_place,
    "Not": _not,
    "Neg": _negative,
    "Where": _where,
    "Cast": _cast,
    "Reshape": _view,
    "Flatten": _view,
    "Unsqueeze": _view,
    "Squeeze": _view,
    "Expand": _expand,
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _concat,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Range": _range,
    "Shape": _shape,
    "ConstantOfShape": _filled,
    "Trilu": _trilu,
}
