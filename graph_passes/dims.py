"""Symbolic dimensions: products of an integer and of unknown sizes, compared exactly.

Exported graphs compute shapes from other shapes: ``[B*S, H]`` for a buffer of zeros, ``[-1, H]`` for a view. To prove
that two of them agree it is enough to know each dimension as ``integer × product of unknowns``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Dim(NamedTuple):
    """``factor`` × the product of ``unknowns`` (identifiers from one `DimTable`, sorted)."""

    factor: int
    unknowns: tuple[int, ...] = ()

    @property
    def constant(self) -> int | None:
        """The value, if nothing in it is unknown."""
        return None if self.unknowns else self.factor


ONE = Dim(1)
INFERRED = Dim(-1)
"""What a Reshape writes for the dimension that it leaves to be worked out."""


def product(dims: Iterable[Dim]) -> Dim:
    factors, unknowns = [], []
    for dim in dims:
        factors.append(dim.factor)
        unknowns.extend(dim.unknowns)
    factor = math.prod(factors)
    return Dim(factor, tuple(sorted(unknowns))) if factor else Dim(0)


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """``whole / part`` where that is exact whatever the unknowns are; otherwise None."""
    if part.factor == 0 or whole.factor % part.factor:
        return None
    rest = list(whole.unknowns)
    for unknown in part.unknowns:
        if unknown not in rest:
            return None
        rest.remove(unknown)
    return Dim(whole.factor // part.factor, tuple(rest))


class DimTable:
    """Hands out unknowns, and remembers what is learnt about them."""

    def __init__(self) -> None:
        self._identifiers: dict[Hashable, int] = {}
        self._known: dict[int, Dim] = {}

    def unknown(self, key: Hashable) -> Dim:
        """The unknown called `key`: the same one for the same key."""
        return Dim(1, (self._identifiers.setdefault(key, len(self._identifiers)),))

    def simplify(self, dim: Dim) -> Dim:
        while any(unknown in self._known for unknown in dim.unknowns):
            dim = product([Dim(dim.factor), *(self._known.get(unknown, Dim(1, (unknown,))) for unknown in dim.unknowns)])
        return dim

    def same(self, left: Dim, right: Dim) -> bool:
        return left == right or self.simplify(left) == self.simplify(right)

    def require(self, dim: Dim, size: int) -> bool:
        """An operator of the graph fails unless ``dim == size``: true if that can be, and then it is known from now on."""
        dim = self.simplify(dim)
        if dim.factor == 1 and len(dim.unknowns) == 1:
            self._known[dim.unknowns[0]] = Dim(size)
            return True
        return dim == Dim(size)

    def equate(self, left: Dim, right: Dim) -> None:
        """Both are the same size, found in two ways: what is unknown in one is known from the other."""
        left, right = self.simplify(left), self.simplify(right)
        if left == right:
            return
        for one, other in ((left, right), (right, left)):
            if one.factor == 1 and len(one.unknowns) == 1 and one.unknowns[0] not in other.unknowns:
                self._known[one.unknowns[0]] = other
                return
