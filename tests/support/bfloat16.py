"""Operands of products of bfloat16: rounded to nearest, ties to even, and what is below the normal numbers is 0."""

from __future__ import annotations

import numpy as np

from .elements import rounded, rounding
from .float32 import SMALLEST_NORMAL


def as_operand(values: np.ndarray) -> np.ndarray:
    """What multiplication sees of these values: float64, same shape. They are rounded to float32 first."""
    values = rounded(values, "float")
    return np.where(np.abs(values) < SMALLEST_NORMAL, 0.0, rounded(values, "bfloat16"))


def operand_error(magnitude: np.ndarray) -> np.ndarray:
    """The most that `as_operand` moves a number of this magnitude: 2^-8 of it (8 bits), or all of a small one."""
    return np.maximum(rounding(magnitude, "bfloat16"), np.minimum(magnitude, SMALLEST_NORMAL))
