"""The activations in float64, and what a float32 evaluation may differ from them."""

from __future__ import annotations

import math

import numpy as np

from .float32 import UNIT

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "identity", "swiglu_oai")
# No slope is steeper: gelu's reaches 1.1289, gelu_tanh's 1.1290; of x·sigmoid(alpha·x), 1.0999 for every alpha > 0.
STEEPEST = 1.13
# Where e^-x overflows in float32 (x < -88.7), x·sigmoid(x) becomes 0; so little is lost.
FLUSHED = 2.0**-120

_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def activate(kind: str, gate: np.ndarray, *, alpha: float = 1.702, limit: float = math.inf) -> np.ndarray:
    """The activation of float64 `gate` (of ``swiglu_oai``: what multiplies the up part)."""
    x = np.asarray(gate, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if kind == "silu":
            return x * sigmoid(x)
        if kind == "gelu":
            return 0.5 * x * (1 + _erf(x / math.sqrt(2)))
        if kind == "gelu_tanh":
            return x * sigmoid(_tanh_argument(x))  # x/2·(1 + tanh(y/2)) = x·sigmoid(y)
        if kind == "relu":
            return np.maximum(x, 0)
        if kind == "identity":
            return x
        clipped = np.minimum(x, np.float32(limit))
        return clipped * sigmoid(np.float64(np.float32(alpha)) * clipped)


def activation_error(kind: str, gate: np.ndarray, *, alpha: float = 1.702, limit: float = math.inf) -> np.ndarray:
    """What a float32 evaluation at exactly `gate` (finite) may differ from `activate`.

    x·sigmoid(y) is x / (1 + e^-y): two roundings and the error of the exponential, 4 UNITs (2 units in the last place):
    6 UNITs of the result where y is exact. An argument that carries r roundings moves e^-y by r·|y| UNITs, of which a
    share of 1 - sigmoid(y) reaches the result: r = 0 for silu, 1 for swiglu_oai, 6 for gelu_tanh (four operations, two
    constants). gelu: x/2·(1 + erf(z)), where z = x/√2 carries two roundings (z·erf'(z) <= 0.485), erf is good to 2
    UNITs and the sum, at most 2, to 2 more: 2.5 UNITs of |x|; then the products, 2 UNITs of the result (at most |x|).
    """
    x = np.asarray(gate, np.float64)
    if kind in ("relu", "identity"):
        return np.zeros_like(x)
    if kind == "gelu":
        return 4.5 * UNIT * np.abs(x) + FLUSHED
    if kind == "swiglu_oai":
        x = np.minimum(x, np.float32(limit))
    argument, roundings = {
        "silu": (x, 0),
        "gelu_tanh": (_tanh_argument(x), 6),
        "swiglu_oai": (np.float32(alpha) * x, 1),
    }[kind]
    share = roundings * np.abs(argument) * (1 - sigmoid(argument))
    return UNIT * (6 + share) * np.abs(activate(kind, gate, alpha=alpha, limit=limit)) + FLUSHED


def _tanh_argument(x: np.ndarray) -> np.ndarray:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
