"""Sizes and positions as polynomials over named unknowns: what the index arithmetic of masks is made of.

`dims` knows products alone, which is all that weights and experts need; positions are sums: ``past + i``, ``b * T + k``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*")


@dataclass(frozen=True)
class Polynomial:
    """``terms``: pairs of a product of unknowns (sorted names) and its factor, which is not 0; in order."""

    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    @property
    def constant(self) -> int | None:
        """The value, if nothing in it is unknown."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @property
    def name(self) -> str | None:
        """The unknown, if it is nothing but one unknown."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def unknowns(self) -> frozenset[str]:
        return frozenset(name for names, _ in self.terms for name in names)

    def __add__(self, other: Polynomial) -> Polynomial:
        return _collected((*self.terms, *other.terms))

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((names, -factor) for names, factor in self.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        return _collected(
            (tuple(sorted(a + b)), factor * other_factor) for a, factor in self.terms for b, other_factor in other.terms
        )

    def with_values(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """With each unknown that `values` names replaced."""
        if not any(name in values for names, _ in self.terms for name in names):
            return self
        total = ZERO
        for names, factor in self.terms:
            term = number(factor)
            for name in names:
                term = term * values.get(name, unknown(name))
            total = total + term
        return total

    def split_by(self, part: Polynomial) -> tuple[Polynomial, Polynomial] | None:
        """(quotient, rest): ``quotient * part + rest``, every term that `part` divides being in the quotient. `part` is one
        product; None for any other."""
        if len(part.terms) != 1:
            return None
        names, divisor = part.terms[0]
        inside, rest = [], []
        for term, factor in self.terms:
            left = _without(term, names)
            if left is None or factor % divisor:
                rest.append((term, factor))
            else:
                inside.append((left, factor // divisor))
        return _collected(inside), _collected(rest)

    def __str__(self) -> str:
        texts = ["*".join((*([str(factor)] if factor != 1 or not names else []), *names)) for names, factor in self.terms]
        return " + ".join(texts) or "0"


ZERO = Polynomial()


def number(value: int) -> Polynomial:
    return Polynomial((((), value),)) if value else ZERO


ONE = number(1)


def unknown(name: str) -> Polynomial:
    return Polynomial((((name,), 1),))


def product(factors: Iterable[Polynomial]) -> Polynomial:
    total = ONE
    for factor in factors:
        total = total * factor
    return total


def parse(text: str) -> Polynomial:
    """A dimension as exporters name it: ``batch``, ``past_length + length``, ``2*s70 + 1``. What is no sum of products of
    names and numbers is an unknown of its own."""
    total = ZERO
    for term in text.split("+"):
        factors = [factor.strip() for factor in term.split("*")]
        if not all(factor.isdigit() or _NAME.fullmatch(factor) for factor in factors):
            return unknown(text)
        total = total + product(number(int(factor)) if factor.isdigit() else unknown(factor) for factor in factors)
    return total


def _collected(terms: Iterable[tuple[tuple[str, ...], int]]) -> Polynomial:
    sums: dict[tuple[str, ...], int] = {}
    for names, factor in terms:
        sums[names] = sums.get(names, 0) + factor
    return Polynomial(tuple(sorted((names, factor) for names, factor in sums.items() if factor)))


def _without(names: tuple[str, ...], removed: tuple[str, ...]) -> tuple[str, ...] | None:
    rest = list(names)
    for name in removed:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)
