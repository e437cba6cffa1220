"""Activations of every level against float64, within the stated bound; and where there is no number to compare."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.activations import ACTIVATIONS, activate, activation_error
from support.float32 import UNIT
from support.guard import guarded
from support.levels import every_level

from ort_hina import _native

every_kind = pytest.mark.parametrize("kind", ACTIVATIONS)


def sweep() -> np.ndarray:
    """Both signs, from subnormal to the square root of the largest, dense where the functions bend."""
    magnitudes = np.concatenate([np.geomspace(1e-40, 1e19, 3000), np.linspace(0, 130, 20001)])
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


def run(isa: str, kind: str, gate: np.ndarray, up: np.ndarray | None = None, **parameters) -> np.ndarray:
    up = np.ones_like(gate) if up is None else up
    return _native.activate(isa, kind, guarded(gate), guarded(up), **parameters)


@every_level
@every_kind
def test_within_the_bound(isa, kind):
    x = sweep()
    h = run(isa, kind, x, beta=0.0)  # up + 0 = 1
    error = np.abs(h - activate(kind, x))
    allowed = activation_error(kind, x)
    worst = np.argmax(error - allowed)
    assert error[worst] <= allowed[worst], f"at {x[worst]}: {h[worst]}, error {error[worst]}, bound {allowed[worst]}"


@every_level
@every_kind
def test_multiplies_by_up(isa, kind):
    x = sweep()
    up = np.random.default_rng(1).standard_normal(x.size).astype(np.float32)
    alone = run(isa, kind, x, beta=0.0)
    np.testing.assert_array_equal(run(isa, kind, x, up, beta=0.0), alone * up)


@every_level
@settings(max_examples=40, deadline=None)
@given(
    alpha=st.sampled_from([1.0, 1.702, 0.5]),
    beta=st.sampled_from([0.0, 1.0, -0.25]),
    limit=st.sampled_from([0.0, 1.0, 7.0, math.inf]),
    scale=st.sampled_from([0.1, 5.0, 20.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_swiglu_oai_limits_gate_above_and_up_on_both_sides(isa, alpha, beta, limit, scale, seed):
    gate, up = (scale * np.random.default_rng(seed).standard_normal((2, 100))).astype(np.float32)
    h = run(isa, "swiglu_oai", gate, up, alpha=alpha, beta=beta, limit=limit)
    factor = np.clip(up.astype(np.float64), -limit, limit) + beta
    value = activate("swiglu_oai", gate, alpha=alpha, limit=limit)
    # The sum with beta and the product are rounded once each.
    own = activation_error("swiglu_oai", gate, alpha=alpha, limit=limit)
    allowed = np.abs(factor) * (own + 2.01 * UNIT * np.abs(value))
    assert (np.abs(h - value * factor) <= allowed).all()


@every_level
@every_kind
def test_limits(isa, kind):
    """NaN stays NaN; +Inf stays; the largest numbers do not overflow on the way; nothing is left of large negatives."""
    largest = np.finfo(np.float32).max
    x = np.array([np.nan, np.inf, largest, 0.0, -largest, -1000.0], np.float32)
    h = run(isa, kind, x, beta=0.0)
    left = [-largest, -1000.0] if kind == "identity" else [0.0, 0.0]
    np.testing.assert_array_equal(h, np.array([np.nan, np.inf, largest, 0.0, *left], np.float32))


@every_level
@every_kind
def test_minus_infinity(isa, kind):
    """0·Inf has no value, in float64 as here; relu and identity have one."""
    h = run(isa, kind, np.array([-np.inf], np.float32), beta=0.0)
    expected = {"relu": 0.0, "identity": -np.inf}.get(kind, np.nan)
    np.testing.assert_array_equal(h, np.array([expected], np.float32))


@every_level
def test_nan_survives_the_limits(isa):
    """A comparison with NaN is false either way: a limit must not take its place."""
    nan, one = np.array([np.nan], np.float32), np.ones(1, np.float32)
    assert np.isnan(run(isa, "swiglu_oai", nan, one, limit=7.0)).all()
    assert np.isnan(run(isa, "swiglu_oai", one, nan, limit=7.0)).all()
    assert np.isnan(run(isa, "relu", nan)).all()


@every_level
@every_kind
def test_each_length_is_the_head_of_a_longer_one(isa, kind):
    x = np.linspace(-9, 9, 67).astype(np.float32)
    whole = run(isa, kind, x)
    for n in range(1, 67):
        np.testing.assert_array_equal(run(isa, kind, x[:n]), whole[:n])
