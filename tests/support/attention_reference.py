"""GroupQueryAttention in float64, and what an evaluation in float32 may differ from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .elements import rounded, rounding
from .float32 import SMALLEST_NORMAL, UNDERFLOW, UNIT, gamma, lost_below

EXPONENTIAL = 4 * UNIT
"""Relative error of the exponential (docs/operators.md)."""
TANH = 8 * UNIT
_KEYS_OF_A_BLOCK = 128
_KEYS_OF_A_PART = 512


@dataclass(frozen=True)
class AttentionCase:
    """A node and what it is given. Arrays are float32; the operator gets them rounded to `kind`, the reference too."""

    kv_heads: int
    query: np.ndarray
    """[B, S, H, D]"""
    key: np.ndarray
    """[B, S, kv_heads, D]"""
    value: np.ndarray
    """[B, S, kv_heads, Dv]"""
    seqlens_k: np.ndarray | None
    """int32 [B]: keys of each sequence, less 1; None: `total` each"""
    total: int
    past_key: np.ndarray | None = None
    """[B, kv_heads, L, D]"""
    past_value: np.ndarray | None = None
    cos: np.ndarray | None = None
    """[positions, width], or [B or 1, S, width]: the angles of each new token; None: no rotation"""
    sin: np.ndarray | None = None
    angle_kind: str | None = None
    """Element type of `cos` and `sin`; None: `kind`"""
    position_ids: np.ndarray | None = None
    bias: np.ndarray | None = None
    """[B or 1, H or 1, S, total]"""
    sink: np.ndarray | None = None
    """[H]"""
    q_norm: np.ndarray | None = None
    """[D], or [H·D]: over the whole token; None: no norm"""
    k_norm: np.ndarray | None = None
    """[D] or [kv_heads·D]"""
    norm_kind: str | None = None
    """Element type of `q_norm` and `k_norm`; None: `kind`"""
    epsilon: float = 1e-6
    mask: np.ndarray | None = None
    """bool, int32 or int64 [B, total]: a key is seen only where it is not 0"""
    kind: str = "float"
    scale: float = 0.0
    softcap: float = 0.0
    window: int = -1
    causal: bool = True
    interleaved: bool = False
    smooth: bool = False

    @property
    def heads(self) -> int:
        """Of the query."""
        return self.query.shape[2]

    @property
    def past_length(self) -> int:
        """Rows of the past caches."""
        return 0 if self.past_key is None else self.past_key.shape[2]

    @property
    def length(self) -> int:
        """Rows of the present caches."""
        return max(self.past_length, self.total)

    def keys_of(self, batch: int) -> int:
        """Keys of a sequence, old and new."""
        return self.total if self.seqlens_k is None else int(self.seqlens_k[batch]) + 1

    def past_and_rows(self, batch: int) -> tuple[int, int]:
        """Keys before the first new token of a sequence, and its new tokens that are not padding."""
        keys = self.keys_of(batch)
        rows = min(self.query.shape[1], keys)
        return keys - rows, rows

    def attributes(self) -> dict[str, int | float]:
        """The node's."""
        return {
            "num_heads": self.heads, "kv_num_heads": self.kv_heads, "scale": float(self.scale),
            "softcap": float(self.softcap), "local_window_size": self.window, "causal": int(self.causal),
            "do_rotary": int(self.cos is not None), "rotary_interleaved": int(self.interleaved),
            "smooth_softmax": int(self.smooth),
        } | ({} if self.q_norm is None and self.k_norm is None else {"qk_norm_epsilon": self.epsilon})  # fmt: skip


@dataclass
class Bounded:
    """Values and how far the operator's may be from them."""

    values: np.ndarray
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))


def make_case(
    rng: np.random.Generator, *, batch: int = 1, kv_heads: int = 1, group: int = 1, size: int = 32,
    value_size: int | None = None, queries: int = 1, past: int = 0, capacity: int | None = None,
    rotary: int = 0, width: float = 1.0, **rest,
) -> AttentionCase:  # fmt: skip
    """Random tensors: `past` keys in every sequence, then `queries` new ones.

    Args:
        capacity: rows of the past caches. None: `past`.
        rotary: width of the tables of angles. 0: no rotation.
        width: standard deviation of queries, keys and values.
        rest: further fields of the case.
    """
    value_size = value_size or size

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * width).astype(np.float32)

    room = past if capacity is None else capacity
    positions = max(past + queries, room)
    angles = rng.uniform(0, 6, (positions, rotary))
    named = dict(
        kv_heads=kv_heads,
        query=normal(batch, queries, kv_heads * group, size),
        key=normal(batch, queries, kv_heads, size),
        value=normal(batch, queries, kv_heads, value_size),
        seqlens_k=np.full(batch, past + queries - 1, np.int32),
        total=past + queries,
        past_key=normal(batch, kv_heads, room, size) if room else None,
        past_value=normal(batch, kv_heads, room, value_size) if room else None,
        cos=np.cos(angles).astype(np.float32) if rotary else None,
        sin=np.sin(angles).astype(np.float32) if rotary else None,
    )
    return replace(AttentionCase(**named), **rest)


def angles_of(case: AttentionCase, batch: int) -> list[np.ndarray]:
    """Cosines and sines of the new tokens of a sequence, [rows, 1, width] each."""
    past, rows = case.past_and_rows(batch)
    tables = [rounded(table, case.angle_kind or case.kind) for table in (case.cos, case.sin)]
    if case.cos.ndim == 3:
        return [table[batch % len(table), :rows, None] for table in tables]
    positions = np.arange(past, past + rows) if case.position_ids is None else case.position_ids[batch, :rows]
    return [table[positions][:, None] for table in tables]


def normalised(case: AttentionCase, x: np.ndarray, weight: np.ndarray | None) -> Bounded:
    """RMSNorm of new tokens [rows, heads, D]: x·r·weight with r = 1 / sqrt(mean of x² + epsilon).

    All terms of the sum are positive, so it is off by gamma(n), relative, and mean and epsilon by a rounding each; of the root
    that is half. The root, its inverse and the two products are a rounding each.
    """
    if weight is None:
        return Bounded(x, np.zeros_like(x))
    size = x.shape[2]
    weight = rounded(weight, case.norm_kind or case.kind).reshape(-1, size)
    terms = weight.size
    square = np.square(x).sum(axis=2 if terms == size else (1, 2), keepdims=True)
    epsilon = np.float64(np.float32(case.epsilon))
    mean = square / terms + epsilon
    off = (1 + gamma(terms)) * (1 + UNIT) ** 2 - 1 + 2 * UNDERFLOW / mean
    values = x / np.sqrt(mean) * weight
    relative = (1 - off) ** -0.5 * (1 + UNIT) ** 4 - 1
    return Bounded(values, relative * np.abs(values) + UNDERFLOW * (1 + np.abs(weight)))


def rotated(case: AttentionCase, x: Bounded, batch: int) -> Bounded:
    """The new tokens of a sequence, [rows, heads, D], turned by their angles.

    Of a turned element, a·cos - b·sin, two products and a sum are rounded: gamma(2)·(|a·cos| + |b·sin|), with a and b as far
    off as they may be.
    """
    if case.cos is None:
        return x
    width = case.cos.shape[-1]
    cos, sin = angles_of(case, batch)
    first = np.arange(width) * 2 if case.interleaved else np.arange(width)
    second = first + (1 if case.interleaved else width)
    a, b = x.values[..., first], x.values[..., second]
    a_error, b_error = x.errors[..., first], x.errors[..., second]
    values, errors = x.values.copy(), x.errors.copy()
    values[..., first], values[..., second] = a * cos - b * sin, b * cos + a * sin

    def error(a, a_error, b, b_error):
        own = a_error * np.abs(cos) + b_error * np.abs(sin)
        return own + gamma(2) * (np.abs(a * cos) + np.abs(b * sin) + own) + 2 * UNDERFLOW

    errors[..., first], errors[..., second] = error(a, a_error, b, b_error), error(b, b_error, a, a_error)
    return Bounded(values, errors)


def new_heads(case: AttentionCase, batch: int, x: np.ndarray, weight: np.ndarray | None) -> Bounded:
    """Queries or keys [S, heads, D] of the new tokens of a sequence, normalised and turned: [rows, heads, D]."""
    _, rows = case.past_and_rows(batch)
    return rotated(case, normalised(case, rounded(x[:rows], case.kind), weight), batch)


def present_caches(case: AttentionCase) -> tuple[Bounded, np.ndarray]:
    """The keys and values [B, kv_heads, length, size] after the call; rows that belong to no key are 0."""
    caches = []
    for new, past in ((case.key, case.past_key), (case.value, case.past_value)):
        cache = Bounded(np.zeros((new.shape[0], case.kv_heads, case.length, new.shape[3])))
        cache.errors = np.zeros_like(cache.values)
        for b in range(new.shape[0]):
            kept, rows = case.past_and_rows(b)
            if kept:
                cache.values[b, :, :kept] = rounded(past[b, :, :kept], case.kind)
            if new is not case.key:
                cache.values[b, :, kept : kept + rows] = rounded(new[b, :rows], case.kind).swapaxes(0, 1)
                continue
            heads = new_heads(case, b, new[b], case.k_norm)
            cache.values[b, :, kept : kept + rows] = heads.values.swapaxes(0, 1)
            if case.cos is not None or case.k_norm is not None:
                error = heads.errors + rounding(np.abs(heads.values) + heads.errors, case.kind)
                cache.errors[b, :, kept : kept + rows] = error.swapaxes(0, 1)
        caches.append(cache)
    return caches[0], caches[1].values


def visible(case: AttentionCase, batch: int) -> np.ndarray:
    """bool [S, length]: which keys a query sees. Padding sees none."""
    past, rows = case.past_and_rows(batch)
    position = past + np.arange(case.query.shape[1])[:, None]
    key = np.arange(case.length)[None, :]
    seen = key < past + rows
    if case.causal:
        seen = seen & (key <= position)
    if case.window != -1:
        seen = seen & (key > position - case.window)
    if case.mask is not None:
        seen = seen & np.pad(case.mask[batch] != 0, (0, case.length - case.total))
    return seen & (position < past + rows)


def attend(
    case: AttentionCase, keys: np.ndarray, values: np.ndarray, products: str = "float", cuts: int = 0
) -> Bounded:
    """The output, [B, S, H, Dv], given what the present caches hold (float64, of the type `kind`).

    With `products` of bfloat16 queries and weights are rounded to it. Not those of keys with an odd number of elements; a
    unit of one or two rows stays in float32, and inside this bound.

    `cuts`: stretches of keys that are summed by themselves, besides those that a mask leaves and parts of long sequences.

    The keys are the operator's own, since it reads them rounded to the type of the cache; `present_caches` bounds them.
    """
    batch, queries, heads = case.query.shape[:3]
    out = np.zeros((batch, queries, heads, values.shape[-1]))
    errors = np.zeros_like(out)
    if keys.shape[-1] % 2:
        products = "float"
    for b in range(batch):
        _, rows = case.past_and_rows(b)
        q = new_heads(case, b, case.query[b], case.q_norm)
        seen = visible(case, b)[:rows]
        for h in range(heads):
            kv = h // (heads // case.kv_heads)
            row = _rounded_queries(Bounded(q.values[:, h], q.errors[:, h]), products)
            # What no query of this sequence sees may be anything.
            some = seen.any(axis=0)
            score = _scores(case, row, keys[b, kv][some], _bias(case, b, h, rows, some), products)
            out[b, :rows, h], errors[b, :rows, h] = _weighted(
                case, score, seen[:, some], values[b, kv][some], _sink(case, h), _runs(case, b), products, cuts
            )
    return Bounded(out, errors)


def _rounded_queries(q: Bounded, products: str) -> Bounded:
    if products == "float":
        return q
    exact = (q.errors == 0) & (rounded(q.values, products) == q.values)
    return Bounded(q.values, q.errors + np.where(exact, 0.0, rounding(np.abs(q.values) + q.errors, products)))


def _runs(case: AttentionCase, batch: int) -> int:
    """Stretches of keys that a mask leaves of a sequence."""
    if case.mask is None:
        return 1
    row = np.pad(case.mask[batch] != 0, 1).astype(int)
    return int((np.diff(row) == 1).sum())


def _bias(case: AttentionCase, batch: int, head: int, rows: int, some: np.ndarray) -> np.ndarray | None:
    if case.bias is None:
        return None
    plane = case.bias[batch % case.bias.shape[0], head % case.bias.shape[1], :rows]
    return rounded(plane, case.kind)[:, some[: case.total]]


def _sink(case: AttentionCase, head: int) -> float:
    if case.sink is not None:
        return float(rounded(case.sink, case.kind)[head])
    return 0.0 if case.smooth else -np.inf


def _scores(case: AttentionCase, q: Bounded, keys: np.ndarray, bias: np.ndarray | None, products: str) -> Bounded:
    """Scaled products, soft-capped, with the bias: [rows, keys].

    A sum of D products, that of q's own errors, and one rounding each for scale, division, product and bias.
    """
    size = keys.shape[1]
    scale = np.float64(np.float32(case.scale) or np.float32(1) / np.sqrt(np.float32(size)))
    with np.errstate(invalid="ignore", over="ignore"):
        s = scale * (q.values @ keys.T)
        magnitude = np.abs(q.values) + q.errors
        error = gamma(size) * (magnitude @ np.abs(keys).T) + q.errors @ np.abs(keys).T + lost_below(size, products)
        error = np.abs(scale) * error * (1 + UNIT) + UNIT * np.abs(s) + UNDERFLOW
        if case.softcap:
            cap = np.float64(np.float32(case.softcap))
            error = error + UNIT * (np.abs(s) + error)
            s = cap * np.tanh(s / cap)
            error = error * (1 + TANH + UNIT) + (TANH + 2 * UNIT) * np.abs(s) + SMALLEST_NORMAL
        if bias is not None:
            s = s + bias
            error = np.where(np.isfinite(s), error + UNIT * (np.abs(s) + error), 0.0)
    return Bounded(s, error)


def _weighted(
    case: AttentionCase, score: Bounded, seen: np.ndarray, values: np.ndarray, sink: float, runs: int,
    products: str, cuts: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Σ w·v / (Σ w + sink) with w = e^(score - the largest), and its error: [rows, Dv] each.

    The computed maximum is subtracted from all scores alike, so its own error cancels. A weight carries, in its exponent,
    the error of its score and u for each unit of distance to the maximum (the distances between successive maxima add up
    to that), the exponential's error, and for each block of keys at most one more exponential and product, where the maximum
    moves, and two of these at the end, where parts are merged. Blocks begin anew with each run of keys. Sums are of as many
    terms as there are keys, blocks and parts. Each cut begins a block, and may be a part.
    Products of bfloat16 round each weight of the numerator once more.
    With numerator n ± N and denominator d ± D the quotient's error is at most (N + |n / d|·D) / (d - D). Where D is near d or
    beyond it (scores whose own errors are near 1), it is still a mean of values with weights that are not negative, and as
    such not larger than the largest.
    """
    keys = seen.shape[1]
    if keys == 0:
        return np.zeros((len(seen), values.shape[1])), np.zeros((len(seen), values.shape[1]))
    blocks = -(-keys // _KEYS_OF_A_BLOCK) + runs + cuts
    # One addition for each key, block and part, whatever the lanes; a few more for the lanes, the sink and the quotient.
    terms = gamma(keys + blocks + keys // _KEYS_OF_A_PART + cuts + 16)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        s = np.where(seen, score.values, -np.inf)
        most = np.maximum(s.max(axis=1, keepdims=True), sink)
        most = np.where(np.isneginf(most), 0.0, most)
        w, own = np.exp(s - most), np.exp(sink - most)
        common = EXPONENTIAL + (EXPONENTIAL + UNIT) * (blocks + 2)

        def relative(error, value):
            distance = np.where(np.isfinite(value), most - value, 0.0)
            return np.expm1(error + UNIT * distance + common) + terms * (1 + np.expm1(error + UNIT * distance + common))

        weight_error = w * relative(np.where(seen, score.errors, 0.0), s)
        weight_error = weight_error + np.where(seen, SMALLEST_NORMAL, 0.0)
        total = w.sum(axis=1, keepdims=True) + own
        total_error = weight_error.sum(axis=1, keepdims=True) + own * relative(0.0, np.full_like(most, sink))
        seen_values = np.where(np.isnan(values) & ~seen.any(axis=0)[:, None], 0.0, values)
        sums = _masked_product(w, seen, seen_values)
        if products != "float":
            weight_error = weight_error + np.where(seen, rounding(w + weight_error, products), 0.0)
        sum_error = _masked_product(weight_error, seen, np.abs(seen_values)) + lost_below(keys, products)
        nothing = total == 0
        out = np.where(nothing, 0.0, sums / np.where(nothing, 1.0, total))
        certain = np.where(total_error < total, total - total_error, 0.0)
        error = (sum_error + np.abs(out) * total_error) / np.where(nothing, 1.0, certain)
        vague = ~nothing & (certain < total / 2)
        if vague.any():
            largest = _largest(seen, np.abs(seen_values)) * (1 + rounding(1.0, products)) * (1 + 3 * terms)
            error = np.where(vague, np.fmin(error, np.abs(out) + largest + lost_below(keys, products)), error)
        error = np.where(nothing, 0.0, error + rounding(np.abs(out) + error, case.kind))
    return out, error


def _largest(seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[rows, Dv], of the values that each row sees."""
    return np.stack([values[row].max(axis=0, initial=0.0) for row in seen])


def _masked_product(weights: np.ndarray, seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """weights @ values, where a NaN among the values reaches only the rows that see it."""
    if np.isfinite(values).all():
        return weights @ values
    return np.stack([w[row] @ values[row] for w, row in zip(weights, seen, strict=True)])
