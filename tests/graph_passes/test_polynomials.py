"""Sums of products of unknowns: arithmetic, names as exporters write them, division."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_hina.graph_passes.polynomials import ONE, ZERO, Polynomial, number, parse, product, unknown

A, B = unknown("a"), unknown("b")


def _polynomials():
    leaves = st.one_of(st.integers(-5, 5).map(number), st.sampled_from([A, B]))
    pairs = lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(_applied)  # noqa: E731
    return st.recursive(leaves, pairs, max_leaves=6)


def _applied(operation: tuple[str, Polynomial, Polynomial]) -> Polynomial:
    sign, left, right = operation
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _value(polynomial: Polynomial, a: int, b: int) -> int:
    return polynomial.with_values({"a": number(a), "b": number(b)}).constant


@given(_polynomials(), _polynomials(), st.integers(-9, 9), st.integers(-9, 9))
def test_arithmetic_is_that_of_integers(left, right, a, b):
    assert _value(left + right, a, b) == _value(left, a, b) + _value(right, a, b)
    assert _value(left - right, a, b) == _value(left, a, b) - _value(right, a, b)
    assert _value(left * right, a, b) == _value(left, a, b) * _value(right, a, b)


@given(_polynomials(), _polynomials())
def test_equal_polynomials_are_equal_objects(left, right):
    same = all(_value(left, a, b) == _value(right, a, b) for a, b in itertools.product(range(-6, 7), repeat=2))
    assert same == (left == right)


@given(_polynomials(), st.sampled_from([A, B, number(2), A * B, number(3) * A]))
def test_division(whole, part):
    quotient, rest = whole.split_by(part)
    assert quotient * part + rest == whole


def test_division_by_a_sum_is_not_known():
    assert (A + B).split_by(A + B) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch_size", unknown("batch_size")),
        ("past_sequence_length + sequence_length", unknown("past_sequence_length") + unknown("sequence_length")),
        ("s69 + s70", unknown("s69") + unknown("s70")),
        ("s15 + s70 + 1", unknown("s15") + unknown("s70") + ONE),
        ("2*s70", number(2) * unknown("s70")),
        ("batch * length", unknown("batch") * unknown("length")),
        ("2", number(2)),
        ("Max(1, s3)", unknown("Max(1, s3)")),
        ("a - b", unknown("a - b")),
    ],
)
def test_names_of_dimensions(text, expected):
    assert parse(text) == expected


def test_constants_and_names():
    assert (ZERO.constant, number(7).constant, (A - A).constant, A.constant) == (0, 7, 0, None)
    assert (A.name, (A + B).name, number(1).name, (A + ZERO).name) == ("a", None, None, "a")
    assert product([A, B, number(3)]) == number(3) * A * B and product([]) == ONE
    assert str(A * B + number(2)) == "2 + a*b" and str(ZERO) == "0"
