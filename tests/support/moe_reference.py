"""The MoE operator in float64, and what a float32 evaluation may differ from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .activations import STEEPEST, activate, activation_error
from .elements import rounding
from .float32 import UNDERFLOW, UNIT, gamma
from .moe_weights import MoeWeights


@dataclass(frozen=True)
class Bounded:
    """Exact values, and the most that the computed ones may differ from them."""

    value: np.ndarray
    error: np.ndarray

    def most(self) -> np.ndarray:
        """The largest magnitude that the computed values can have."""
        return np.abs(self.value) + self.error


def reference(weights: MoeWeights, x: np.ndarray, ids: np.ndarray, routing: np.ndarray, y_type: str) -> Bounded:
    """Y of the node, float64 [T, H], and its error bound.

    x [T, H], routing [T, k]: the float64 values of the inputs; ids [T, k]. The bound follows the computation, with
    u = 2^-24, gamma(n) = n·u/(1 - n·u) (see `float32.gamma`; each product also loses up to 2^-150 to underflow), and E(v)
    the error of v:

        E(x)    = 0; with the weight on the input: u·|p·x|
        E(gate) = Σ E(x)·|w| + gamma(H)·Σ|x·w|; then, with a bias, + u·(|gate + bias| + E(gate))
        E(up)     the same; of swiglu_oai, + u·(|up + beta| + E(up))
        E(act)  = 1.13·E(gate) + the evaluation's own error (the slope of each activation is under 1.129)
        E(h)    = |act|·E(up) + |up|·E(act) + E(act)·E(up) + u·|h|
        E(down) = Σ E(h)·|w| + gamma(I)·Σ|h·w|;  with a bias as above
        E(y)    = Σ_j |p_j|·E(down_j) + gamma(k)·Σ_j |p_j·down_j|, and one rounding to the type of Y

    where |v| stands for the largest magnitude that the computed v can have, |v| + E(v).
    """
    x, routing = np.asarray(x, np.float64), np.asarray(routing, np.float64)
    on_input = weights.attributes.get("weight_on") == "input"
    tokens, k = ids.shape
    total, error, magnitude = (np.zeros((tokens, x.shape[1])) for _ in range(3))
    for expert in np.unique(ids):
        token, choice = np.nonzero(ids == expert)
        p = routing[token, choice][:, None]
        rows = x[token] * p if on_input else x[token]
        down = _expert(weights, expert, rows, input_roundings=1 if on_input else 0)
        if on_input:
            p = np.ones_like(p)
        np.add.at(total, token, p * down.value)
        np.add.at(error, token, np.abs(p) * down.error + UNDERFLOW)
        np.add.at(magnitude, token, np.abs(p) * down.most())
    error += gamma(k) * magnitude
    if y_type != "float":
        error = error + rounding(np.abs(total) + error, y_type)
    return Bounded(total, error)


def _expert(weights: MoeWeights, expert: int, x: np.ndarray, input_roundings: int) -> Bounded:
    rows = Bounded(x, input_roundings * (UNIT * np.abs(x) + UNDERFLOW))
    gate = _linear(weights, "gate", expert, rows)
    act = _activation(weights.attributes, gate)
    hidden = act
    if "up" in weights.matrices:
        up = _limited(weights.attributes, _linear(weights, "up", expert, rows))
        error = np.abs(act.value) * up.error + np.abs(up.value) * act.error + act.error * up.error
        hidden = Bounded(act.value * up.value, error + UNIT * act.most() * up.most() + UNDERFLOW)
    return _linear(weights, "down", expert, hidden)


def _linear(weights: MoeWeights, role: str, expert: int, x: Bounded) -> Bounded:
    w = weights.matrices[role][expert]
    k = w.shape[0]
    value = x.value @ w
    error = x.error @ np.abs(w) + gamma(k) * (x.most() @ np.abs(w)) + k * UNDERFLOW
    if role in weights.biases:
        value = value + weights.biases[role][expert]
        error = error + UNIT * (np.abs(value) + error)
    return Bounded(value, error)


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
