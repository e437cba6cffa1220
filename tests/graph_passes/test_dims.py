"""Symbolic dimensions."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ort_hina.graph_passes.dims import ONE, Dim, DimTable, product, quotient

dims = st.builds(
    lambda factor, unknowns: Dim(factor, tuple(sorted(unknowns))), st.integers(1, 12), st.lists(st.integers(0, 3), max_size=3)
)


def value(dim: Dim, sizes: list[int]) -> int:
    return dim.factor * math.prod(sizes[unknown] for unknown in dim.unknowns)


@given(st.lists(dims, max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_a_product_has_the_value_of_its_parts(parts, sizes):
    assert value(product(parts), sizes) == math.prod(value(part, sizes) for part in parts)


@given(dims, dims)
def test_a_quotient_undoes_a_product(left, right):
    assert quotient(product((left, right)), right) == left


@given(dims, dims, st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_a_quotient_is_exact_or_refused(whole, part, sizes):
    found = quotient(whole, part)
    if found is not None:
        assert value(found, sizes) * value(part, sizes) == value(whole, sizes)


def test_no_division_by_what_may_be_another():
    table = DimTable()
    batch, length = table.unknown("batch"), table.unknown("length")
    assert quotient(batch, length) is None
    assert quotient(Dim(3), Dim(2)) is None
    assert quotient(batch, Dim(0)) is None


def test_zero_has_one_spelling():
    assert product((Dim(0), DimTable().unknown("batch"))) == Dim(0)


def test_what_is_required_is_known_afterwards():
    table = DimTable()
    width = table.unknown("width")
    assert not table.same(width, Dim(64))
    assert table.require(width, 64)
    assert table.same(width, Dim(64)) and table.same(product((width, Dim(2))), Dim(128))
    assert table.require(width, 64) and not table.require(width, 32)
    assert not table.require(Dim(5), 6)


def test_same_key_same_unknown():
    table = DimTable()
    assert table.unknown("a") == table.unknown("a") != table.unknown("b")
    assert table.same(product((table.unknown("a"), table.unknown("b"))), product((table.unknown("b"), table.unknown("a"))))
    assert product(()) == ONE
