"""What one element of a tensor may be: integers as polynomials, numbers, conditions, or one of two of these."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from .formulas import And, AtLeastZero, Formula, Not, Seen, at_least_zero, choice, conjunction, disjunction, negation
from .polynomials import ONE, ZERO, Polynomial, number


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

FORMULAS = (bool, AtLeastZero, Seen, Not, And)
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})


def lifted(function: Callable[..., Element], *operands: Element) -> Element:
    """`function` of all that the operands may be."""
    for place, operand in enumerate(operands):
        if isinstance(operand, Either):
            return either(
                operand.condition,
                lifted(function, *operands[:place], operand.then, *operands[place + 1 :]),
                lifted(function, *operands[:place], operand.otherwise, *operands[place + 1 :]),
            )
    return function(*operands)


def either(condition: Formula, then: Element, otherwise: Element) -> Element:
    if isinstance(condition, bool):
        return then if condition else otherwise
    if isinstance(then, FORMULAS) and isinstance(otherwise, FORMULAS):
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
    return element if isinstance(element, FORMULAS) else element != 0.0


def numbers(*operands: Element) -> tuple:
    """Operands of one kind: floats if one of them is; of a polynomial that is no number there is no float."""
    if all(isinstance(operand, Polynomial) for operand in operands):
        return operands
    plain = [operand.constant if isinstance(operand, Polynomial) else operand for operand in operands]
    if any(isinstance(operand, FORMULAS) or operand is None for operand in plain):
        raise NotUnderstood("numbers of different kinds meet")
    return tuple(float(operand) for operand in plain)


def _arithmetic(of_integers: Callable, of_floats: Callable) -> Callable[[Element, Element], Element]:
    def apply(left: Element, right: Element) -> Element:
        left, right = numbers(left, right)
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
    return either(at_least_zero(left - right), left, right)


def _smaller(left: Polynomial, right: Polynomial) -> Element:
    return either(at_least_zero(left - right), right, left)


def _equal(left: Element, right: Element) -> Formula:
    if isinstance(left, FORMULAS) and isinstance(right, FORMULAS):
        return choice(left, right, negation(right))
    left, right = numbers(left, right)
    if isinstance(left, Polynomial):
        return conjunction(at_least_zero(left - right), at_least_zero(right - left))
    return left == right


def _comparison(
    of_difference: Callable[[Polynomial], Formula], of_floats: Callable
) -> Callable[[Element, Element], Formula]:
    def apply(left: Element, right: Element) -> Formula:
        left, right = numbers(left, right)
        return of_difference(left - right) if isinstance(left, Polynomial) else of_floats(left, right)

    return apply


BINARY: dict[str, Callable[[Element, Element], Element]] = {
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


def to_integer(value: Element) -> Element:
    if isinstance(value, Polynomial):
        return value
    if not isinstance(value, float) or not value.is_integer() or abs(value) > 2**31:
        raise NotUnderstood("a mask is cast to integers in a way that is not understood")
    return number(int(value))


def to_float(value: Element) -> Element:
    return value if not isinstance(value, Polynomial) or value.constant is None else float(value.constant)
