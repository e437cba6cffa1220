"""What a call of the layer computes: tokens, and the experts that each of them asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .shapes import MoeShape


@dataclass(frozen=True)
class Workload:
    """One size of call. `x` is f32 [T, hidden], `weights` f32 [T, k]; call number `step` takes `ids[step % len(ids)]`,
    int64 [T, k]. Consecutive calls ask for other experts, round and round all that are stored."""

    shape: MoeShape
    x: np.ndarray
    weights: np.ndarray
    ids: tuple[np.ndarray, ...]
    active_experts: int
    prefill: bool

    @property
    def tokens(self) -> int:
        return self.x.shape[0]

    @property
    def tokens_per_expert(self) -> float:
        """The mean over the active experts."""
        return self.tokens * self.shape.k / self.active_experts

    @property
    def flops(self) -> int:
        """Operations of a call's matrix products; a multiply-add is two."""
        return 2 * self.tokens * self.shape.k * 3 * self.shape.matrix_elements()

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the experts that a call reads."""
        return self.active_experts * self.shape.expert_bytes(dtype)


def exact(shape: MoeShape, tokens_per_expert: int) -> Workload:
    """Every active expert gets exactly `tokens_per_expert` tokens: all tokens of a call choose the same k experts."""
    steps = shape.experts // math.gcd(shape.experts, shape.k)
    chosen = [(step * shape.k + np.arange(shape.k)) % shape.experts for step in range(steps)]
    ids = tuple(np.tile(row, (tokens_per_expert, 1)) for row in chosen)
    return _workload(shape, ids, shape.k, prefill=False)


def prefill(shape: MoeShape, tokens: int) -> Workload:
    """Each token chooses k of all experts at random, with the uneven loads that this gives."""
    rng = np.random.default_rng(tokens)
    ids = np.stack([rng.permutation(shape.experts)[: shape.k] for _ in range(tokens)])
    return _workload(shape, (ids,), len(np.unique(ids)), prefill=True)


def scaled_prefill(model: MoeShape, stored: MoeShape, tokens: int) -> Workload:
    """Prefill of `tokens` where only some of the model's experts are stored: as many tokens as those would get."""
    return prefill(stored, max(1, tokens * stored.experts // model.experts))


def _workload(shape: MoeShape, ids: tuple[np.ndarray, ...], active: int, prefill: bool) -> Workload:
    tokens = ids[0].shape[0]
    x = np.random.default_rng(tokens).standard_normal((tokens, shape.hidden), dtype=np.float32)
    weights = np.full((tokens, shape.k), 1 / shape.k, np.float32)
    return Workload(shape, x, weights, ids, active, prefill)
