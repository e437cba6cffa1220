"""Conditions on positions: simplified as they are made, compared case by case."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_hina.graph_passes import formulas
from ort_hina.graph_passes.formulas import at_least_zero, choice, conditions, conjunction, disjunction, equivalent, negation
from ort_hina.graph_passes.polynomials import number, unknown

NAMES = "pqr"
CONDITIONS = {name: at_least_zero(unknown(name)) for name in NAMES}


def _formulas():
    leaves = st.one_of(st.booleans(), st.sampled_from(NAMES))
    pairs = lambda inner: st.tuples(st.sampled_from(["and", "or", "not"]), inner, inner)  # noqa: E731
    return st.recursive(leaves, pairs, max_leaves=6)


def _built(tree):
    if isinstance(tree, tuple):
        kind, left, right = tree
        if kind == "not":
            return negation(_built(left))
        return {"and": conjunction, "or": disjunction}[kind](_built(left), _built(right))
    return CONDITIONS.get(tree, tree)


def _truth(tree, case):
    if isinstance(tree, tuple):
        kind, left, right = tree
        if kind == "not":
            return not _truth(left, case)
        sides = _truth(left, case), _truth(right, case)
        return all(sides) if kind == "and" else any(sides)
    return case.get(tree, tree)


def _nothing_excluded(*_):
    return False


@given(_formulas(), _formulas())
def test_equivalent_is_what_a_truth_table_says(left, right):
    cases = [dict(zip(NAMES, values, strict=True)) for values in itertools.product((False, True), repeat=len(NAMES))]
    same = all(_truth(left, case) == _truth(right, case) for case in cases)
    assert equivalent(_built(left), _built(right), _nothing_excluded) == same


def test_what_cannot_be_at_once_is_left_out():
    p, q = CONDITIONS["p"], CONDITIONS["q"]
    assert not equivalent(conjunction(p, q), p, _nothing_excluded)

    def p_makes_q_hold(a, a_holds, b, b_holds):
        return {(a, a_holds), (b, b_holds)} == {(p, True), (q, False)}

    assert equivalent(conjunction(p, q), p, p_makes_q_hold)
    assert not equivalent(conjunction(p, q), q, p_makes_q_hold)


def test_a_condition_and_its_opposite_are_one_condition():
    x = unknown("x")
    assert at_least_zero(-x - number(1)) == negation(at_least_zero(x))
    assert (at_least_zero(number(0)), at_least_zero(number(-1))) == (True, False)


def test_choices():
    p, q = CONDITIONS["p"], CONDITIONS["q"]
    assert equivalent(choice(p, q, negation(q)), choice(q, p, negation(p)), _nothing_excluded)
    assert equivalent(choice(p, True, True), True, _nothing_excluded) and choice(True, p, q) == p


def test_of_too_many_conditions_nothing_is_said():
    many = True
    for place in range(formulas.MOST_CONDITIONS + 1):
        many = conjunction(many, at_least_zero(unknown(f"x{place}")))
    assert len(conditions(many)) == formulas.MOST_CONDITIONS + 1
    assert not equivalent(many, many, _nothing_excluded)


@pytest.mark.parametrize("value", [True, False])
def test_constants_disappear(value):
    p = CONDITIONS["p"]
    assert conjunction(p, value) == (p if value else False) and disjunction(value, p) == (True if value else p)
