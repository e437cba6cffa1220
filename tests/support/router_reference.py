"""The Router operator in float64, and what an evaluation in float32 may differ from it.

What float32 computes alike on every machine (the sum of a logit and a bias, the threshold of the sparse mixer) is computed
in float32 here too; exponentials and their sums are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ort_hina.graph_passes.router_spec import RouterSpec

from .float32 import SMALLEST_NORMAL, UNIT

EXPONENTIAL = 4 * UNIT
"""Relative error of the exponential (docs/operators.md)."""


def route(spec: RouterSpec, logits: np.ndarray, bias: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The chosen experts and their weights.

    Experts are chosen in descending order of their (biased) scores; of equal ones the lower index comes first, and NaN
    counts as +Inf. Scores below the smallest normal float32 are 0.

    Args:
        logits: [..., E], of a float type; taken as float32. bias: [E], the selection's bias.

    Returns:
        ids, int64 [..., k], and weights, float64 [..., k].

    Raises:
        ValueError: the attributes and shapes are no router's.
    """
    selection = select(spec, logits, bias)
    shape = (*np.shape(logits)[:-1], spec.k)
    return selection.ids.reshape(shape), weights_of(spec, selection).reshape(shape)


@dataclass(frozen=True)
class Selection:
    """What was chosen for each token, and why."""

    ids: np.ndarray
    """int64 [T, k]"""
    scores: np.ndarray
    """Of the chosen experts, without the bias: float64 [T, k]."""
    score_errors: np.ndarray
    """How far float32 may be from them."""
    decided: np.ndarray
    """bool [T]: no rounding of float32 can lead to other ids. Equal inputs count as decided: they give equal scores."""


def select(spec: RouterSpec, logits: np.ndarray, bias: np.ndarray | None = None) -> Selection:
    """The choice of `route`; arguments and errors as there."""
    x = np.asarray(logits, np.float32).reshape(-1, np.shape(logits)[-1])
    b = None if bias is None else np.asarray(bias, np.float32)
    _check(spec, x.shape[1], b)
    with np.errstate(all="ignore"):
        if spec.score == "sparse_mixer":
            return _sparse_mixer(spec, x)
        scores, score_errors = _scores(spec, x)
        values, errors = _biased(spec, scores, score_errors, x, b)
        identity = _identities(x, b)
        sure = np.ones(len(x), bool)
        if spec.num_groups > 1:
            outside, sure = _outside(spec, values, errors, identity)
            values = np.where(outside, np.float64(spec.masked_score), values)
            errors = np.where(outside, 0.0, errors)
            identity = np.where(outside, -1, identity)
        order = _descending(values)
        sure &= _decided(spec.k, order, values, errors, identity)
    ids = order[:, : spec.k]
    return Selection(ids, _take(scores, ids), _take(score_errors, ids), sure)


def weights_of(spec: RouterSpec, selection: Selection) -> np.ndarray:
    """The chosen experts' weights: float64 [T, k]."""
    with np.errstate(all="ignore"):
        w = selection.scores
        if spec.weight_function == "softmax":
            w = _softmax(w)
        elif spec.weight_function == "sigmoid":
            w = _sigmoid(w)
        if spec.normalize:
            total = np.maximum(w.sum(axis=1, keepdims=True), _float32(spec.normalize_min))
            w = w / (total + _float32(spec.normalize_epsilon))
        return w * _float32(spec.scale)


def weight_error(spec: RouterSpec, selection: Selection) -> np.ndarray:
    """The most that float32 weights may differ from `weights_of`: float64 [T, k].

    With u = 2^-24, E(v) the error of v, and first-order terms doubled to cover the products of errors:

        softmax of the k scores  2·w·(E_j + max E + u·2·|s_j - max| + 2·4u + (k + 1)·u)
        sigmoid of each          E(s)/4 + 2·w·5u·(1 + its exponential's share, at most 1)
        normalised               2·w·(E(w)/w + Σ E(w) / (Σ + epsilon) + (k + 2)·u)
        scaled                   E(w)·scale + u·|w|

    and the smallest normal number for what is lost by underflow, at every step. Infinite: it may be NaN.
    """
    with np.errstate(all="ignore"):
        w, error = selection.scores, selection.score_errors
        if spec.weight_function == "softmax":
            best = w.max(axis=1, keepdims=True)
            distance = np.where(np.isfinite(w), best - w, 0.0)
            relative = error + error.max(axis=1, keepdims=True) + UNIT * 2 * distance + 2 * EXPONENTIAL + (spec.k + 1) * UNIT
            w = _softmax(w)
            error = 2 * w * relative + SMALLEST_NORMAL
        elif spec.weight_function == "sigmoid":
            w = _sigmoid(w)
            error = error / 4 + 2 * w * 2 * (EXPONENTIAL + UNIT) + SMALLEST_NORMAL
        if spec.normalize:
            total = np.maximum(w.sum(axis=1, keepdims=True), _float32(spec.normalize_min))
            total = total + _float32(spec.normalize_epsilon)
            w = w / total
            shared = error.sum(axis=1, keepdims=True) / total + (spec.k + 2) * UNIT
            # Weights that all underflow have no sum: as in the graph, 0 / 0.
            lost = total <= error.sum(axis=1, keepdims=True)
            error = np.where(lost, np.inf, 2 * (error / np.abs(total) + np.abs(w * shared)) + SMALLEST_NORMAL)
        scale = abs(_float32(spec.scale))
        return error * scale + UNIT * np.abs(w) * scale + SMALLEST_NORMAL


def _check(spec: RouterSpec, experts: int, bias: np.ndarray | None) -> None:
    if not 1 <= spec.k <= experts:
        raise ValueError(f"k: expected 1 to {experts} experts, got {spec.k}")
    if bias is not None and bias.shape != (experts,):
        raise ValueError(f"bias: expected shape ({experts},), got {bias.shape}")
    if experts % spec.num_groups or not 1 <= spec.top_groups <= spec.num_groups:
        raise ValueError(f"{spec.top_groups} of {spec.num_groups} groups of {experts} experts")
    if spec.num_groups > 1 and spec.group_score == "top2_sum" and experts // spec.num_groups < 2:
        raise ValueError("top2_sum: expected groups of 2 experts or more")
    if spec.score == "sparse_mixer" and (spec.k != 2 or spec.num_groups != 1 or bias is not None):
        raise ValueError("sparse_mixer: expected k = 2, no groups and no bias")


def _float32(value: float) -> np.float64:
    """An attribute as the operator receives it."""
    return np.float64(np.float32(value))


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _scores(spec: RouterSpec, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all experts, and their errors in float32.

    Softmax: x - max is rounded once (u·|x - max| in the exponent), the exponential, the sum of E terms (each within what
    was said, and E - 1 roundings) and the division. Sigmoid: the exponential, the sum and the division; the exponential's
    error counts with its share of 1 + e^-x, at most all of it. First-order terms doubled.
    """
    x64 = x.astype(np.float64)
    if spec.score == "none":
        return x64, np.zeros_like(x64)
    if spec.score == "softmax":
        distance = x64.max(axis=1, keepdims=True) - x64
        s = _softmax(x64)
        # Of a term of the sum, distance times e^-distance is under 0.4 of the largest term, so of the sum.
        summed = EXPONENTIAL + UNIT * (0.4 * x.shape[1] + x.shape[1])
        relative = UNIT * np.where(np.isfinite(distance), distance, 0.0) + EXPONENTIAL + summed + UNIT
    else:
        s = _sigmoid(x64)
        relative = EXPONENTIAL + 2 * UNIT
    s = np.where(s < SMALLEST_NORMAL, 0.0, s)
    return s, 2 * s * relative + SMALLEST_NORMAL


def _biased(
    spec: RouterSpec, scores: np.ndarray, errors: np.ndarray, x: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Selection values and their errors. Logits themselves plus a bias are summed in float32: no doubt is left."""
    if bias is None:
        return scores, errors
    if spec.score == "none":
        return (x + bias).astype(np.float64), errors
    values = scores + bias.astype(np.float64)
    return values, errors + UNIT * np.abs(values)


def _identities(x: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """int64 [T, E]: equal, within a token, where logit and bias are; their scores are then equal in any arithmetic."""
    pair = x.astype(np.complex128)
    pair.imag = 0.0 if bias is None else bias
    ids = np.empty(x.shape, np.int64)
    for t in range(len(x)):
        ids[t] = np.unique(np.nan_to_num(pair[t], nan=np.pi), return_inverse=True)[1].reshape(-1)
    return ids


def _descending(values: np.ndarray) -> np.ndarray:
    """Indices [T, n] from the largest down, where NaN counts as +Inf; of equal ones the lower index first."""
    numbers = np.where(np.isnan(values), np.inf, values)
    return np.argsort(-numbers, axis=1, kind="stable").astype(np.int64)


def _take(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, ids, axis=1)


def _decided(k: int, order: np.ndarray, values: np.ndarray, errors: np.ndarray, identity: np.ndarray) -> np.ndarray:
    """bool [T]: each of the first k is surely before the next one, and the k-th before all that are left out."""
    v, e, same = (_take(a, order) for a in (values, errors, identity))
    sure = np.ones(len(values), bool)
    for i, j in pairwise(range(k)):
        sure &= _surely_before(v, e, same, i, [j])
    return sure & _surely_before(v, e, same, k - 1, list(range(k, values.shape[1])))


def _surely_before(v: np.ndarray, e: np.ndarray, same: np.ndarray, i: int, others: list[int]) -> np.ndarray:
    """bool [T]: float32 keeps the order of position i and these others, which come later."""
    first, error, identity = v[:, i, None], e[:, i, None], same[:, i, None]
    far = first - v[:, others] > error + e[:, others]
    exact = (error == 0) & (e[:, others] == 0)
    return (far | exact | (identity == same[:, others]) | np.isnan(first)).all(axis=1)


def _outside(
    spec: RouterSpec, values: np.ndarray, errors: np.ndarray, identity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Experts that are in none of the best groups, bool [T, E]; and where that is decided, bool [T]."""
    tokens, experts = values.shape
    size = experts // spec.num_groups
    grouped, group_errors, names = (a.reshape(tokens * spec.num_groups, size) for a in (values, errors, identity))
    order = _descending(grouped)
    count = 1 if spec.group_score == "max" else 2
    best, names = _take(grouped, order[:, :count]), _take(names, order[:, :count])
    # Which of the experts is best may itself be in doubt: the largest error of the group covers that.
    error = count * group_errors.max(axis=1)
    if spec.score == "none":
        worth = best.astype(np.float32).sum(axis=1, dtype=np.float32).astype(np.float64)
    else:
        worth = best.sum(axis=1)
        error = error + (UNIT * np.abs(worth) if count == 2 else 0.0)
    worth, error = worth.reshape(tokens, spec.num_groups), error.reshape(tokens, spec.num_groups)
    # Equal names where the experts that count are the same: names are below E, so pairs can be told apart.
    name = (names @ (experts ** np.arange(count))).reshape(tokens, spec.num_groups)
    ranked = _descending(worth)
    sure = np.ones(tokens, bool)
    v, e, same = (_take(a, ranked) for a in (worth, error, name))
    rest = list(range(spec.top_groups, spec.num_groups))
    for i in range(spec.top_groups):
        sure &= _surely_before(v, e, same, i, rest)
    outside = np.ones((tokens, spec.num_groups), bool)
    np.put_along_axis(outside, ranked[:, : spec.top_groups], False, axis=1)
    return np.repeat(outside, size, axis=1), sure


def _sparse_mixer(spec: RouterSpec, x: np.ndarray) -> Selection:
    """Phi-3.5-MoE: the best expert, then the best of the others, each with its own softmax over the experts near it."""
    threshold = np.float32(2) * np.float32(spec.jitter)
    rows = np.arange(len(x))
    ids, scores, errors = [], [], []
    left = x
    for _ in range(2):
        # The chosen one keeps its place in the order, behind -inf: the second is always another expert.
        rank = np.where(np.isnan(left), np.inf, left.astype(np.float64))
        rank = np.where(np.isneginf(rank), -1e300, rank)
        if ids:
            rank[rows, ids[0]] = -np.inf
        best = rank.argmax(axis=1)
        top = left[rows, best][:, None]
        far = (top - x) / np.maximum(np.abs(x), top) > threshold
        near = np.where(far, -np.inf, left.astype(np.float64))
        distance = np.where(np.isneginf(near), 0.0, top - near)
        total = np.exp(near - top).sum(axis=1)
        ids.append(best)
        scores.append(np.exp(near[rows, best] - top[:, 0]) / total)
        relative = EXPONENTIAL + UNIT * (distance.max(axis=1) + x.shape[1] + 1)
        errors.append(2 * scores[-1] * relative)
        left = left.copy()
        left[rows, best] = -np.inf
    decided = np.ones(len(x), bool)
    chosen = np.stack(ids, axis=1).astype(np.int64)
    return Selection(chosen, np.stack(scores, axis=1), np.stack(errors, axis=1), decided)
