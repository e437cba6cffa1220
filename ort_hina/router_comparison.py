"""Logits on which routers can be told apart, and what two routers may answer on them and still be the same.

Ids must be equal, whatever their order within a token, and so must be the weights that belong to them, within rounding. A
token whose choice hangs on less than rounding is not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .graph_passes.router_spec import RouterSpec

UNIT = 2.0**-24
"""Half a unit in the last place of float32, relative."""
# ONNX Runtime's Sigmoid is a rational function: measured against float64, it is within 1.6e-7 everywhere, and constant
# below -18. 2^-22 is 2.4e-7.
SIGMOID_ERROR = 2.0**-22
# Rounding of the exponent (distances up to 160 in these rows) and of the exponential itself, in the softmax and its sum.
EXPONENT_ROUNDINGS = 176
SMALLEST_NORMAL = 2.0**-126

# Rows of each kind; what share of them must be judged.
ROWS = 16
SMALLEST_JUDGED_SHARE = 0.25
LARGEST_LOGIT = 80.0


@dataclass(frozen=True)
class Comparison:
    """As `verify.Verdict`: `difference` and `tolerance` are of the weight that comes closest to what rounding allows."""

    state: str
    difference: float | None = None
    tolerance: float = 0.0
    detail: str = ""


def router_rows(experts: int, random: np.random.Generator, *, finite: bool = False) -> np.ndarray:
    """Logits [rows, experts] in float32 on which routers can be told apart.

    Distinct numbers on a grid from -8 to 8 (so that most choices hang on more than rounding), exact ties of two and of
    four, numbers up to ±80, tiny ones, and, unless `finite`, rows with -inf.
    """
    order = random.permuted(np.tile(np.arange(experts), (ROWS, 1)), axis=1)
    step = 2.0 ** -math.ceil(math.log2(max(experts, 2) / 16))
    kinds = [
        (order - experts // 2) * min(step, 0.125),
        (order // 2 - experts // 4) * min(2 * step, 0.25),
        (order // 4 - experts // 8) * min(4 * step, 0.5),
        np.zeros((1, experts)),
        random.uniform(-LARGEST_LOGIT, LARGEST_LOGIT, (ROWS, experts)),
        order * 2.0**-100,
    ]
    if not finite:
        blocked = np.where(order < experts // 2, -np.inf, kinds[0])
        kinds += [blocked, np.where(order == 0, 1.0, -np.inf)]
    return np.concatenate(kinds).astype(np.float32)


@dataclass(frozen=True)
class Routes:
    """What the original answers: ids and weights [T, k], and the table [T, E] that it chose from, before (`unmasked`) and
    after groups were masked. None: there is no such table (sparse mixer)."""

    ids: np.ndarray
    weights: np.ndarray
    table: np.ndarray | None
    unmasked: np.ndarray | None
    bias: np.ndarray | None = None

    def first(self, count: int) -> Routes:
        parts = (self.ids, self.weights, self.table, self.unmasked)
        return Routes(*(None if part is None else part[:count] for part in parts), self.bias)


def compare_routes(
    spec: RouterSpec, logits: np.ndarray, expected: Routes, ids: np.ndarray, weights: np.ndarray
) -> Comparison:
    """Judges the `ids` and `weights` [T, k] of a Router on `logits` [T, E], which are what its type makes of them."""
    shape = expected.ids.shape
    if ids.shape != shape or weights.shape != shape:
        detail = f"the fused node answers with shapes {ids.shape} and {weights.shape}, expected {shape}"
        return Comparison("failed", detail=detail)
    errors = _score_errors(spec, logits)
    judged = decided(spec, logits, expected, errors)
    if judged.sum() < SMALLEST_JUDGED_SHARE * len(judged):
        return Comparison("inconclusive", detail="most choices of the random rows hang on rounding")
    order, other = np.argsort(expected.ids, axis=1), np.argsort(ids, axis=1)
    wrong = (np.take_along_axis(expected.ids, order, 1) != np.take_along_axis(ids, other, 1)).any(axis=1) & judged
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        detail = f"row {row}: the fused node chooses experts {ids[row]}, the original {expected.ids[row]}"
        return Comparison("failed", detail=detail)
    left = np.take_along_axis(expected.weights, order, 1).astype(np.float64)[judged]
    right = np.take_along_axis(weights, other, 1).astype(np.float64)[judged]
    limit = np.take_along_axis(weight_bounds(spec, logits, expected.ids, errors), order, 1)[judged]
    return _judge(left, right, limit)


def _judge(expected: np.ndarray, found: np.ndarray, limit: np.ndarray) -> Comparison:
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isnan(expected) & np.isnan(found) | (expected == found), 0.0, np.abs(expected - found))
    if np.isnan(difference).any():
        return Comparison("failed", detail="a weight is NaN on one side only")
    place = np.unravel_index(np.argmax(difference / limit), limit.shape)
    worst, bound = float(difference[place]), float(limit[place])
    if worst <= bound:
        return Comparison("verified", worst, bound)
    return Comparison("failed", worst, bound, f"a weight differs by {worst:.2g}, and rounding allows {bound:.2g}")


def decided(spec: RouterSpec, logits: np.ndarray, expected: Routes, errors: np.ndarray) -> np.ndarray:
    """bool [T]: whether the choice of a token hangs on more than rounding, or on ties of equal inputs alone."""
    if expected.table is None:
        return np.ones(len(logits), bool)  # compares logits themselves
    names = np.unique(_named(logits, expected.bias), axis=-1, return_inverse=True)[1].reshape(logits.shape)
    table = expected.table.astype(np.float64)
    unmasked = table if expected.unmasked is None else expected.unmasked.astype(np.float64)
    outside = table != unmasked
    slack = np.where(outside, 0.0, errors + UNIT * np.abs(np.nan_to_num(table)))
    sure = _boundary_is_sure(table, slack, np.where(outside, -1, names), spec.k)
    if spec.num_groups > 1:
        sure &= _groups_are_sure(spec, unmasked, errors)
    return sure


def _named(logits: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Pairs (logit, bias) as the columns of [2, T * E]: equal pairs have equal scores in any arithmetic."""
    other = np.zeros(logits.shape[1]) if bias is None else bias.astype(np.float64)
    return np.stack([logits.reshape(-1), np.broadcast_to(other, logits.shape).reshape(-1)])


def _boundary_is_sure(values: np.ndarray, slack: np.ndarray, names: np.ndarray, k: int) -> np.ndarray:
    """bool [T]: nothing that was left out is within rounding of the last that was taken, unless all of these are equal."""
    order = np.argsort(-values, axis=1, kind="stable")
    last = np.take_along_axis(values, order[:, k - 1 : k], 1)
    with np.errstate(invalid="ignore"):
        near = np.abs(values - last) <= slack + np.take_along_axis(slack, order[:, k - 1 : k], 1)
    near |= values == last  # infinities
    rank = np.argsort(order, axis=1)
    left_out = (near & (rank >= k)).any(axis=1)
    lowest = np.where(near, names, names.max() + 1).min(axis=1)
    highest = np.where(near, names, -2).max(axis=1)
    return ~left_out | (lowest == highest)


def _groups_are_sure(spec: RouterSpec, table: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """bool [T]: no group that was left out is within rounding of the last that was taken."""
    split = (len(table), spec.num_groups, -1)
    best = -np.sort(-table.reshape(split), axis=2)
    worth = best[:, :, :1] if spec.group_score == "max" else best[:, :, :2]
    slack = 2 * errors.reshape(split).max(axis=2) + 2 * UNIT * np.abs(worth).sum(axis=2)
    # Groups with equal scores but different members count as near: no names.
    names = np.broadcast_to(np.arange(spec.num_groups), slack.shape)
    return _boundary_is_sure(worth.sum(axis=2), slack, names, spec.top_groups)


def _score_errors(spec: RouterSpec, logits: np.ndarray) -> np.ndarray:
    """How far two float32 evaluations of a score may be apart: [T, E]."""
    if spec.score == "none" or spec.score == "sparse_mixer":
        return np.zeros(logits.shape)
    if spec.score == "sigmoid":
        return np.full(logits.shape, SIGMOID_ERROR)
    return 2 * _scores(spec, logits) * (EXPONENT_ROUNDINGS + logits.shape[1]) * UNIT + SMALLEST_NORMAL


def _scores(spec: RouterSpec, logits: np.ndarray) -> np.ndarray:
    if spec.score == "softmax":
        return _softmax(logits)
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits)) if spec.score == "sigmoid" else logits


def _softmax(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def weight_bounds(spec: RouterSpec, logits: np.ndarray, ids: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """How far two float32 evaluations of the weights at `ids` may be apart: [T, k], above 0."""
    relative = 2 * (EXPONENT_ROUNDINGS + logits.shape[1]) * UNIT
    if spec.score == "sparse_mixer":
        return np.full(ids.shape, relative)
    weights, bound = (np.take_along_axis(part, ids, 1) for part in (_scores(spec, logits), errors))
    if spec.weight_function == "softmax":
        weights, bound = _softmax(weights), np.full(ids.shape, relative) + 2 * bound.max(axis=1, keepdims=True)
    elif spec.weight_function == "sigmoid":
        weights, bound = 1 / (1 + np.exp(-weights)), bound / 4 + SIGMOID_ERROR
    if spec.normalize:
        total = np.maximum(weights.sum(axis=1, keepdims=True), spec.normalize_min) + spec.normalize_epsilon
        # Where the sum may be wrong by as much as it is, nothing is known but that weights are between 0 and 1.
        spread = bound.sum(axis=1, keepdims=True) / np.maximum(total, 1e-300)
        weights = weights / np.maximum(total, 1e-300)
        bound = np.where(spread < 0.5, 2 * (bound / np.maximum(total, 1e-300) + weights * spread), 1.0)
    rounded = (spec.k + 8) * UNIT * np.abs(np.nan_to_num(weights, posinf=0, neginf=0))
    return (bound + rounded) * abs(spec.scale) + SMALLEST_NORMAL
