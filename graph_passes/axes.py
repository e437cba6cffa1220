"""Axes of values with a meaning: how a reshape spreads them over other dimensions."""

from __future__ import annotations

from .dims import ONE, Dim, DimTable, product, quotient
from .meanings import Axes, Axis, Refusal

ONE_AXIS = Axis("one", ONE)


def sizes(axes: Axes) -> tuple[Dim, ...]:
    return tuple(axis.size for axis in axes)


def roles(axes: Axes) -> list[str]:
    """The roles of `axes`, without those of one element."""
    return [axis.role for axis in axes if axis.role != "one"]


def atoms(axes: Axes) -> Axes:
    """`axes` without those of one element, joined ones taken apart."""
    found = []
    for axis in axes:
        if axis.role == "joined":
            found.extend(atoms(axis.parts))
        elif axis.role != "one":
            found.append(axis)
    return tuple(found)


def joined(parts: Axes) -> Axis:
    """One axis that runs over `parts`. Tokens that were split are simply tokens again."""
    merged: list[Axis] = []
    for part in parts:
        if merged and merged[-1].role == part.role == "token":
            merged[-1] = Axis("token", product((merged[-1].size, part.size)))
        else:
            merged.append(part)
    return merged[0] if len(merged) == 1 else Axis("joined", product(part.size for part in merged), tuple(merged))


def regrouped(dims: DimTable, axes: Axes, shape: tuple[Dim, ...]) -> Axes:
    """`axes` spread over `shape`, in the same order of elements: axes may be joined, joined ones taken apart, and tokens
    split.

    Raises:
        Refusal: something else would be split, or the sizes are not proved to agree.
    """
    rest = list(atoms(axes))
    result = []
    for size in shape:
        if dims.same(size, ONE):
            result.append(ONE_AXIS)
            continue
        taken: list[Axis] = []
        while not _complete(dims, taken, size):
            if not rest:
                raise Refusal("a reshape joins or splits axes")
            taken.append(_next_part(dims, taken, rest, size))
        result.append(joined(tuple(taken)))
    if any(not dims.same(axis.size, ONE) for axis in rest):
        raise Refusal("a reshape joins or splits axes")
    return tuple(result)


def _complete(dims: DimTable, taken: list[Axis], size: Dim) -> bool:
    return bool(taken) and dims.same(product(part.size for part in taken), size)


def _next_part(dims: DimTable, taken: list[Axis], rest: list[Axis], size: Dim) -> Axis:
    """The next axis from `rest`, or as much of it (if it runs over tokens) as `size` still wants."""
    axis = rest.pop(0)
    wanted = quotient(dims.simplify(size), dims.simplify(product(part.size for part in taken)))
    if wanted is None or dims.same(wanted, axis.size) or axis.role != "token":
        return axis
    left = quotient(dims.simplify(axis.size), wanted)
    if left is None:
        return axis
    rest.insert(0, Axis("token", left))
    return Axis("token", wanted)
