"""Conditions on positions, as masks express them: ``k <= q + past``, ``attention_mask[b, k] != 0``, and, or, not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from .polynomials import Polynomial, number

# 2^n cases are looked at one by one: real masks have three or four conditions.
MOST_CONDITIONS = 10


@dataclass(frozen=True)
class AtLeastZero:
    """``value >= 0``. Its first term's factor is positive: of a condition and its opposite one is written as `Not`."""

    value: Polynomial


@dataclass(frozen=True)
class Seen:
    """``mask[row, column] != 0``, for an input of the model."""

    mask: ir.Value
    row: Polynomial
    column: Polynomial


@dataclass(frozen=True)
class Not:
    operand: Formula


@dataclass(frozen=True)
class And:
    left: Formula
    right: Formula


Formula = bool | AtLeastZero | Seen | Not | And
Condition = AtLeastZero | Seen


def at_least_zero(value: Polynomial) -> Formula:
    if value.constant is not None:
        return value.constant >= 0
    factor = next(factor for names, factor in value.terms if names)
    # -v >= 0 is the opposite of v - 1 >= 0, and these are integers.
    return AtLeastZero(value) if factor > 0 else Not(AtLeastZero(-value - number(1)))


def negation(formula: Formula) -> Formula:
    if isinstance(formula, bool):
        return not formula
    return formula.operand if isinstance(formula, Not) else Not(formula)


def conjunction(left: Formula, right: Formula) -> Formula:
    if left is False or right is False:
        return False
    if left is True or left == right:
        return right
    return left if right is True else And(left, right)


def disjunction(left: Formula, right: Formula) -> Formula:
    return negation(conjunction(negation(left), negation(right)))


def choice(condition: Formula, then: Formula, otherwise: Formula) -> Formula:
    return disjunction(conjunction(condition, then), conjunction(negation(condition), otherwise))


def conditions(formula: Formula) -> set[Condition]:
    """All that the formula is made of."""
    match formula:
        case bool():
            return set()
        case Not(operand):
            return conditions(operand)
        case And(left, right):
            return conditions(left) | conditions(right)
    return {formula}


def mapped(formula: Formula, change: Callable[[Condition], Formula]) -> Formula:
    """With each condition replaced by what `change` makes of it."""
    match formula:
        case bool():
            return formula
        case Not(operand):
            return negation(mapped(operand, change))
        case And(left, right):
            return conjunction(mapped(left, change), mapped(right, change))
    return change(formula)


def equivalent(left: Formula, right: Formula, excluded: Callable[[Condition, bool, Condition, bool], bool]) -> bool:
    """Whether both are true in the same cases. ``excluded(a, x, b, y)`` says that a being x and b being y cannot be at once;
    where it does not know, more has to be equal than would be needed. Of too many conditions nothing is said."""
    names = sorted(conditions(left) | conditions(right), key=repr)
    if len(names) > MOST_CONDITIONS:
        return False
    impossible = [
        {a: x, b: y}
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product((False, True), repeat=2)
        if excluded(a, x, b, y)
    ]
    for values in itertools.product((False, True), repeat=len(names)):
        case = dict(zip(names, values, strict=True))
        if any(pair.items() <= case.items() for pair in impossible):
            continue
        if _truth(left, case) != _truth(right, case):
            return False
    return True


def _truth(formula: Formula, case: Mapping[Condition, bool]) -> bool:
    match formula:
        case bool():
            return formula
        case Not(operand):
            return not _truth(operand, case)
        case And(left, right):
            return _truth(left, case) and _truth(right, case)
    return case[formula]
