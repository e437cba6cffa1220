"""Elementwise functions between the matrix products of an expert: built operator by operator, then named as the operator MoE
names activations."""

from __future__ import annotations

import math
from collections.abc import Callable

from .meanings import Activation, Function, Linear, Refusal

Expression = Linear | Function | float


def function(name: str, *operands: Expression) -> Expression:
    """``name(*operands)``, with the few rewritings that make spellings alike: products are flat, a product with 1 is none,
    and the logistic function has one form."""
    match name, operands:
        case "mul", _:
            factors = [factor for operand in operands for factor in factors_of(operand)]
            factors = [factor for factor in factors if factor != 1.0]
            return factors[0] if len(factors) == 1 else Function("mul", tuple(factors))
        case "div", (numerator, denominator):
            logistic = _logistic(denominator)
            if logistic is not None:
                return function("mul", numerator, logistic)
        case "reciprocal", (denominator,):
            return _logistic(denominator) or Function(name, operands)
        case "clip", (Function("clip", (inner, low, high)), below, above):
            return Function("clip", (inner, max(low, below), min(high, above)))
    return Function(name, operands)


def factors_of(expression: Expression) -> tuple[Expression, ...]:
    return expression.operands if isinstance(expression, Function) and expression.name == "mul" else (expression,)


def _logistic(denominator: Expression) -> Function | None:
    """``1 / denominator`` if that is a sigmoid."""
    match denominator:
        case Function("add", (1.0, Function("exp", (Function("neg", (x,)),)))) | Function(
            "add", (Function("exp", (Function("neg", (x,)),)), 1.0)
        ):
            return Function("sigmoid", (x,))
    return None


def named(expression: Expression) -> tuple[Activation, Linear, Linear | None]:
    """The activation in `expression`, what it is applied to (the gate), and what it is multiplied by (up), if anything.

    Raises:
        Refusal: it is none that the operator MoE has.
    """
    factors = list(factors_of(expression))
    for find in _ACTIVATIONS:
        found = find(factors)
        if found is not None:
            return found
    raise Refusal(f"{text(expression)} is no activation that is known here")


def text(expression: Expression) -> str:
    """For people: matrix products are called x, y, …"""
    return _text(expression, [])


def _text(expression: Expression, products: list[Linear]) -> str:
    match expression:
        case Function("mul", operands):
            return " * ".join(_text(operand, products) for operand in operands)
        case Function("add", (left, right)):
            return f"({_text(left, products)} + {_text(right, products)})"
        case Function(name, operands):
            return f"{name}({', '.join(_text(operand, products) for operand in operands)})"
        case Linear():
            if expression not in products:
                products.append(expression)
            return "xyzuvw"[min(products.index(expression), 5)]
    return f"{expression:.6g}"


Found = tuple[Activation, Linear, Linear | None]


def _gated(activation: Activation, gate: Linear, rest: list[Expression]) -> Found | None:
    """`rest`: the factors besides the activation."""
    if not rest:
        return activation, gate, None
    return (activation, gate, rest[0]) if len(rest) == 1 and isinstance(rest[0], Linear) else None


def _without(factors: list[Expression], *taken: Expression) -> list[Expression] | None:
    rest = list(factors)
    for factor in taken:
        if factor not in rest:
            return None
        rest.remove(factor)
    return rest


def _logistic_kinds(factors: list[Expression]) -> Found | None:
    """silu, and what differs from it: a factor inside the sigmoid (QuickGelu), a number added to up."""
    for factor in factors:
        match factor:
            case Function("sigmoid", (Linear() as gate,)):
                alpha = 1.0
            case Function(
                "sigmoid", (Function("mul", (Linear() as gate, float(alpha)) | (float(alpha), Linear() as gate)),)
            ):
                pass
            case _:
                continue
        rest = _without(factors, factor, gate)
        if rest is None or len(rest) > 1:
            continue
        if not rest:
            return (Activation("silu"), gate, None) if alpha == 1.0 else None
        up, beta = _plus(rest[0])
        if isinstance(up, Linear):
            plain = alpha == 1.0 and beta == 0.0
            return Activation("silu") if plain else Activation("swiglu_oai", alpha, beta), gate, up
    return None


def _clamped(factors: list[Expression]) -> Found | None:
    """gpt-oss: min(gate, L) * sigmoid(alpha * min(gate, L)) * (clamp(up, -L, L) + 1)."""
    for factor in factors:
        match factor:
            case Function(
                "sigmoid",
                (Function("mul", (Function("clip") as gate, float(alpha)) | (float(alpha), Function("clip") as gate)),),
            ):
                pass
            case Function("sigmoid", (Function("clip") as gate,)):
                alpha = 1.0
            case _:
                continue
        rest = _without(factors, factor, gate)
        if rest is None or len(rest) != 1:
            continue
        match gate, _plus(rest[0]):
            case Function(_, (Linear() as linear, low, limit)), (Function("clip", (Linear() as up, below, above)), beta) if (
                low == -math.inf and -below == above == limit
            ):
                return Activation("swiglu_oai", alpha, beta, limit), linear, up
    return None


def _plus(expression: Expression) -> tuple[Expression, float]:
    match expression:
        case Function("add", (inner, float(beta)) | (float(beta), inner)):
            return inner, beta
    return expression, 0.0


def _gelu_by_hand(name: str, curve: Callable[[Function], Linear | None]) -> Callable[[list[Expression]], Found | None]:
    """0.5 * x * (1 + curve(x)), the factors in any order."""

    def find(factors: list[Expression]) -> Found | None:
        for factor in factors:
            inner, one = _plus(factor)
            x = curve(inner) if isinstance(inner, Function) and one == 1.0 else None
            constants = [other for other in factors if isinstance(other, float)]
            rest = None if x is None else _without([other for other in factors if not isinstance(other, float)], factor, x)
            if rest is not None and math.isclose(math.prod(constants), 0.5):
                return _gated(Activation(name), x, rest)
        return None

    return find


def _erf(expression: Function) -> Linear | None:
    match expression:
        case Function("erf", (Function("div", (Linear() as x, float(root))),)) if _near(root, math.sqrt(2)):
            return x
        case Function("erf", (Function("mul", (Linear() as x, float(f)) | (float(f), Linear() as x)),)) if _near(
            f, math.sqrt(0.5)
        ):
            return x
    return None


def _tanh(expression: Function) -> Linear | None:
    """tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))"""
    match expression:
        case Function(
            "tanh", (Function("mul", (float(f), Function("add") as inner) | (Function("add") as inner, float(f))),)
        ) if _near(f, math.sqrt(2 / math.pi)):
            return _cubic(inner)
    return None


def _cubic(expression: Function) -> Linear | None:
    for x, cubic in (expression.operands, expression.operands[::-1]):
        factors = factors_of(cubic)
        constants = [factor for factor in factors if isinstance(factor, float)]
        rest = [factor for factor in factors if not isinstance(factor, float)]
        cube = rest in (
            [x, x, x],
            [Function("pow", (x, 3.0))],
            [x, Function("pow", (x, 2.0))],
            [Function("pow", (x, 2.0)), x],
        )
        if isinstance(x, Linear) and cube and _near(math.prod(constants), 0.044715):
            return x
    return None


def _single(name: str) -> Callable[[list[Expression]], Found | None]:
    """An activation that is one operator."""

    def find(factors: list[Expression]) -> Found | None:
        for factor in factors:
            match factor:
                case Function(found, (Linear() as gate,)) if found == name:
                    return _gated(Activation(name), gate, _without(factors, factor) or [])
        return None

    return find


def _bilinear(factors: list[Expression]) -> Found | None:
    if len(factors) == 2 and all(isinstance(factor, Linear) for factor in factors):
        return Activation("identity"), factors[0], factors[1]
    return None


def _near(found: float, expected: float) -> bool:
    """To the precision of a 16-bit float: constants are stored in the type of the model."""
    return math.isclose(found, expected, rel_tol=1e-3)


_ACTIVATIONS = (
    _logistic_kinds,
    _clamped,
    _gelu_by_hand("gelu", _erf),
    _gelu_by_hand("gelu_tanh", _tanh),
    _single("relu"),
    _single("gelu"),
    _single("gelu_tanh"),
    _bilinear,
)
