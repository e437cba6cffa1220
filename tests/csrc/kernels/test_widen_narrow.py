"""16-bit elements: widening is exact for every pattern, narrowing rounds to nearest, ties to even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.elements import NUMPY_TYPE, encode
from support.guard import guarded
from support.levels import every_level

from ort_hina import _native

every_half = pytest.mark.parametrize("kind", ["float16", "bfloat16"])
ALL_PATTERNS = np.arange(65536, dtype=np.uint16)


def as_floats(patterns: np.ndarray, kind: str) -> np.ndarray:
    return patterns.view(NUMPY_TYPE[kind]).astype(np.float32)


def narrow(isa: str, values: np.ndarray, kind: str) -> np.ndarray:
    """The 16-bit patterns of float32 `values`."""
    return _native.narrow(isa, guarded(np.asarray(values, np.float32)), kind).view(np.uint16)


def assert_same_numbers(got: np.ndarray, expected: np.ndarray, kind: str) -> None:
    """Bit for bit, except that a NaN may be any NaN, and that a sum that starts at +0 makes +0 of -0."""
    got_values, expected_values = as_floats(got, kind), as_floats(expected, kind)
    np.testing.assert_array_equal(got_values, expected_values)


@every_level
@every_half
def test_widens_every_pattern_exactly(isa, kind):
    wide = _native.widen(isa, guarded(ALL_PATTERNS.view(np.uint8)), kind)
    expected = as_floats(ALL_PATTERNS, kind)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(wide), nan)
    np.testing.assert_array_equal(wide[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@every_level
@every_half
def test_narrowing_gives_every_pattern_back(isa, kind):
    assert_same_numbers(narrow(isa, as_floats(ALL_PATTERNS, kind), kind), ALL_PATTERNS, kind)


@every_level
@every_half
def test_ties_go_to_even_and_their_neighbours_to_the_nearer(isa, kind):
    """Between each two neighbours, subnormals included: the middle, and the float32 on either side of it."""
    finite = ALL_PATTERNS[:-1][np.isfinite(as_floats(ALL_PATTERNS[1:], kind)) & (ALL_PATTERNS[:-1] != 0x7FFF)]
    low, high = as_floats(finite, kind).astype(np.float64), as_floats(finite + np.uint16(1), kind).astype(np.float64)
    middle = ((low + high) / 2).astype(np.float32)  # exact: float32 has the bits
    even = np.where(finite % 2 == 0, finite, finite + np.uint16(1))
    assert_same_numbers(narrow(isa, middle, kind), even, kind)
    away = np.where(middle < 0, np.float32(-np.inf), np.float32(np.inf))
    assert_same_numbers(narrow(isa, np.nextafter(middle, np.float32(0)), kind), finite, kind)
    assert_same_numbers(narrow(isa, np.nextafter(middle, away), kind), finite + np.uint16(1), kind)


@every_level
def test_float16_overflows_where_the_rounded_value_would(isa):
    """65504 is the largest; 65520 is the middle between it and 65536, whose pattern is Inf's."""
    values = [65504, 65519.99, 65520, 1e30, -65519.99, -65520, -np.inf, np.inf]
    expected = [0x7BFF, 0x7BFF, 0x7C00, 0x7C00, 0xFBFF, 0xFC00, 0xFC00, 0x7C00]
    assert narrow(isa, values, "float16").tolist() == expected


@every_level
def test_bfloat16_overflows_where_the_rounded_value_would(isa):
    below = np.uint32([0x7F7F7FFF, 0x7F7F8000, 0xFF7F7FFF, 0xFF7F8000]).view(np.float32)
    assert narrow(isa, below, "bfloat16").tolist() == [0x7F7F, 0x7F80, 0xFF7F, 0xFF80]


@every_level
@every_half
def test_nan_stays_nan(isa, kind):
    """Also where all set bits of its payload would be cut off or a rounding would carry into the exponent."""
    nans = np.uint32([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF]).view(np.float32)
    assert np.isnan(as_floats(narrow(isa, nans, kind), kind)).all()


@every_level
@every_half
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 200))
def test_narrows_any_pattern_of_float32(isa, kind, seed, n):
    values = np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    assert_same_numbers(narrow(isa, values, kind), encode(values, kind).view(np.uint16), kind)


@every_level
@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 15, 16, 17, 33])
def test_widening_scales_and_reads_no_further(isa, kind, n):
    values = np.linspace(-3, 3, n).astype(np.float32)
    data = encode(values, kind)
    expected = data.view(NUMPY_TYPE[kind]).astype(np.float32) * np.float32(0.3)
    for at in ("start", "end"):
        np.testing.assert_array_equal(_native.widen(isa, guarded(data, at=at), kind, 0.3), expected)
