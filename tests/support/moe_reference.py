"""The MoE operator in float64, and what an evaluation in float32, or with products of bfloat16, may differ from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .activations import FLUSHED, STEEPEST, activate, activation_error, sigmoid
from .bfloat16 import as_operand, operand_error
from .elements import rounding
from .float32 import UNDERFLOW, UNIT, gamma, lost_below
from .moe_weights import MoeWeights


@dataclass(frozen=True)
class Bounded:
    """Exact values, and the most that the computed ones may differ from them."""

    value: np.ndarray
    error: np.ndarray

    def most(self) -> np.ndarray:
        """The largest magnitude that the computed values can have."""
        return np.abs(self.value) + self.error


def in_float(weights: str) -> str:
    """For `reference`: products of float32, whatever the element type of the weights."""
    return "float"


def reference(
    weights: MoeWeights,
    x: np.ndarray,
    ids: np.ndarray,
    routing: np.ndarray,
    y_type: str,
    products: Callable[[str], str] = in_float,
    *,
    follow: bool = True,
    addend: np.ndarray | None = None,
) -> Bounded:
    """Y of the node, float64 [T, H], and its error bound.

    The bound follows the computation, with u = 2^-24, gamma(n) = n·u/(1 - n·u) (see `float32.gamma`), and E(v) the error
    of v:

        E(x)    = 0; with the weight on the input: u·|p·x|
        E(gate) = Σ E(x')·|w'| + Σ |x'|·E(w') + gamma(H)·Σ|x'·w'|; then, with a bias, + u·(|gate + bias| + E(gate))
        E(up)     the same; of swiglu_oai, + u·(|up + beta| + E(up))
        E(act)  = 1.13·E(gate) + the evaluation's own error (the slope of each activation is under 1.129)
        E(h)    = |act|·E(up) + |up|·E(act) + E(act)·E(up) + u·|h|
        E(down) = Σ E(h')·|w'| + Σ |h'|·E(w') + gamma(I)·Σ|h'·w'|;  with a bias as above
        E(z)    = gamma(H)·Σ|x·g|                                 of a sigmoid gate
        E(s)    = E(z)/4 + gamma(4)·|s|: no slope of the sigmoid is steeper; e^-z is good to two u, 1 + and 1 / have one each
        E(p')   = |p|·E(s) + u·|p·s|;  without a gate p' = p, exactly
        E(y)    = Σ_j |p'_j|·E(down_j) + |down_j|·E(p'_j) + gamma(k)·Σ_j |p'_j·down_j|; with an addend, + u·|sum|; and one
                  rounding to the type of Y

    where |v| stands for the largest magnitude that the computed v can have, |v| + E(v). What a sum loses because numbers can
    be too small comes on top (`float32.lost_below`).

    x', h' and w' are the factors as they are multiplied: as they are for products of float32; for products of bfloat16
    rounded to its 8 bits, once (weights of that type, and X of that type without weight on the input, are so already):

        E(x') = E(x) + 2^-8·|x|, and numbers below 2^-126 are 0         E(h'), E(w')  likewise

    That is the bound against exact arithmetic (`follow` false). With `follow` the same roundings are done here, so that only
    doubts about them remain: the computed v lies within v ± E(v), rounding keeps the order of numbers, so v' lies between
    what the two ends become. The value is then that of the rounded factors, and the error nearly that of float32: a wrong
    kernel cannot hide behind 2^-8.

    Args:
        x, routing, addend: the float64 values of the inputs, [T, H], [T, k] and [T, H]; ids: [T, k].
        products: from the element type of a matrix to the type of its products, "float" or "bfloat16".
        follow: see above.
    """
    node = _Node(weights, products, follow)
    x, routing = np.asarray(x, np.float64), np.asarray(routing, np.float64)
    on_input = weights.attributes.get("weight_on") == "input"
    tokens, k = ids.shape
    total, error, magnitude = (np.zeros((tokens, x.shape[1])) for _ in range(3))
    for expert in np.unique(ids):
        if node.is_skipped(expert):
            continue
        token, choice = np.nonzero(ids == expert)
        p = node.weight(expert, x[token], routing[token, choice])
        rows = _exactly(x[token])
        if on_input:
            scaled = x[token] * p.value
            rows, p = Bounded(scaled, UNIT * np.abs(scaled) + UNDERFLOW), _exactly(np.ones_like(p.value))
        down = node.expert(expert, rows)
        np.add.at(total, token, p.value * down.value)
        np.add.at(error, token, p.most() * down.error + p.error * np.abs(down.value) + UNDERFLOW)
        np.add.at(magnitude, token, p.most() * down.most())
    error += gamma(k) * magnitude
    if addend is not None:
        total = total + addend
        error = error + UNIT * (np.abs(total) + error)
    if y_type != "float":
        error = error + rounding(np.abs(total) + error, y_type)
    return Bounded(total, error)


@dataclass(frozen=True)
class _Node:
    weights: MoeWeights
    products: Callable[[str], str]
    follow: bool

    def is_skipped(self, expert: int) -> bool:
        attributes = self.weights.attributes
        return attributes.get("missing_experts") == "skip" and attributes["gate_offsets"][expert] == -1

    def weight(self, expert: int, x: np.ndarray, routing: np.ndarray) -> Bounded:
        """What multiplies the expert's answers to these tokens, [tokens, 1]."""
        p, gates = routing[:, None], self.weights.sigmoid_gates
        if gates is None or np.isnan(gates[expert]).any():
            return _exactly(p)
        z = x @ gates[expert][:, None]
        own = gamma(x.shape[1]) * (np.abs(x) @ np.abs(gates[expert])[:, None]) + lost_below(x.shape[1], "float")
        s = Bounded(sigmoid(z), own / 4)
        s = Bounded(s.value, s.error + gamma(4) * s.most() + FLUSHED)
        return Bounded(p * s.value, np.abs(p) * (s.error + UNIT * s.most()) + UNDERFLOW)

    def expert(self, expert: int, x: Bounded) -> Bounded:
        """What the expert answers to these tokens."""
        attributes = self.weights.attributes
        gate = self._linear("gate", expert, x)
        hidden = act = _activation(attributes, gate)
        if "up" in self.weights.matrices:
            up = _limited(attributes, self._linear("up", expert, x))
            error = np.abs(act.value) * up.error + np.abs(up.value) * act.error + act.error * up.error
            hidden = Bounded(act.value * up.value, error + UNIT * act.most() * up.most() + UNDERFLOW)
        return self._linear("down", expert, hidden)

    def _linear(self, role: str, expert: int, x: Bounded) -> Bounded:
        products = self.products(self.weights.kind(role, expert))
        matrix = self.weights.matrices[role][expert]
        k = matrix.shape[0]
        w = Bounded(matrix, np.zeros((1, 1)))
        if products == "bfloat16":
            x, w = self._factor(x), self._factor(w)
        value = x.value @ w.value
        magnitudes = w.most()
        error = (x.error + gamma(k) * x.most()) @ magnitudes + lost_below(k, products)
        if w.error.any():
            error += x.most() @ w.error
        if role in self.weights.biases:
            value = value + self.weights.biases[role][expert]
            error = error + UNIT * (np.abs(value) + error)
        return Bounded(value, error)

    def _factor(self, v: Bounded) -> Bounded:
        """Rounded to bfloat16 for a product."""
        if not self.follow:
            return Bounded(v.value, v.error + operand_error(v.most()))
        value = as_operand(v.value)
        if not v.error.any():
            return Bounded(value, v.error)
        low, high = as_operand(v.value - v.error), as_operand(v.value + v.error)
        return Bounded(value, np.maximum(high - value, value - low))


def _exactly(value: np.ndarray) -> Bounded:
    return Bounded(value, np.zeros_like(value))


def _activation(attributes: dict[str, Any], gate: Bounded) -> Bounded:
    """The evaluation's own error is taken at the exact gate; that it may be a little larger at the computed one (its
    slope is under 100 UNITs) is covered by what `STEEPEST` has beyond the true largest slope."""
    parameters = _parameters(attributes)
    value = activate(attributes["activation"], gate.value, **parameters)
    own = activation_error(attributes["activation"], gate.value, **parameters)
    return Bounded(value, STEEPEST * gate.error + own)


def _limited(attributes: dict[str, Any], up: Bounded) -> Bounded:
    """swiglu_oai: up is clamped (which moves no two values apart) and beta is added, with one rounding."""
    if attributes["activation"] != "swiglu_oai":
        return up
    limit = np.float64(np.float32(attributes.get("swiglu_limit", np.inf)))
    value = np.clip(up.value, -limit, limit) + np.float64(np.float32(attributes.get("activation_beta", 1.0)))
    return Bounded(value, up.error + UNIT * (np.abs(value) + up.error))


def _parameters(attributes: dict[str, Any]) -> dict[str, float]:
    if attributes["activation"] != "swiglu_oai":
        return {}
    return {"alpha": attributes.get("activation_alpha", 1.702), "limit": attributes.get("swiglu_limit", np.inf)}
