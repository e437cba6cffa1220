"""What one element of a computed tensor is, as an expression in its position: for proving what a mask lets through.

`Tensors.element(mask, (b, h, q, k))` walks back from a mask to the model's inputs and answers with the condition under
which the mask holds, whatever operators move the elements on the way: Range, Unsqueeze, Expand, Gather of a flattened
mask, Trilu, ScatterND of everything. What is not understood raises `NotUnderstood`; nothing is ever guessed.

Two assumptions, both part of what a model's inputs mean: the elements of an attention mask are 0 or 1; and sizes that meet
in one operator are equal (none is 1 by chance, and broadcast).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from .constants import initializer_tensor, is_standard, small_constant
from .formulas import And, AtLeastZero, Condition, Formula, Not, Seen, at_least_zero, conjunction, equivalent, negation
from .polynomials import ONE, ZERO, Polynomial, number, parse, unknown
from .router_expressions import said
from .symbolic_elements import INTEGERS, Either, Element, NotUnderstood

Sizes = tuple[Polynomial, ...]
Index = tuple[Polynomial, ...]
SizeRules = Mapping[str, Callable[["Tensors", ir.Node], Sizes]]
"""By operator: the sizes of its first output."""
ElementRules = Mapping[str, Callable[["Tensors", ir.Node, Index], Element]]
"""By operator: what lies at a place of its first output."""


class Tensors:
    """Answers for one graph, which must not change meanwhile. The rules are those of `symbolic_operators`."""

    def __init__(self, size_rules: SizeRules, element_rules: ElementRules) -> None:
        self._size_rules, self._element_rules = size_rules, element_rules
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
        rule = self._size_rules.get(node.op_type) if is_standard(node) and value is node.outputs[0] else None
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
        return tuple(self.integer(value, (number(i),) if sizes else ()) for i in range(length))

    def integer(self, value: ir.Value, index: Index) -> Polynomial:
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
            return constant_element(constant, index)
        if node is None:
            return self._input_element(value, index)
        if not is_standard(node) or value is not node.outputs[0] or node.op_type not in self._element_rules:
            raise NotUnderstood(_unknown_operator(node))
        with _shapes_that_fit(node):
            return self._element_rules[node.op_type](self, node, index)

    def _input_element(self, value: ir.Value, index: Index) -> Element:
        types = (ir.DataType.BOOL, *INTEGERS)
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


def constant_element(array: np.ndarray, index: Index) -> Element:
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
