"""Random inputs of a MoE node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .elements import decode, encode


@dataclass(frozen=True)
class MoeTokens:
    """X, expert_ids and expert_weights.

    Attributes:
        x, routing: their values, float64 [T, H] and [T, k].
        x_data, routing_data: their bytes.
        ids: int32 or int64 [T, k].
    """

    x: np.ndarray
    x_data: np.ndarray
    x_type: str
    ids: np.ndarray
    routing: np.ndarray
    routing_data: np.ndarray
    routing_type: str

    def head(self, tokens: int) -> MoeTokens:
        """The first `tokens` of them."""
        return self.take(np.arange(tokens))

    def take(self, rows: np.ndarray) -> MoeTokens:
        """These tokens, in this order."""
        return with_x(
            replace(self, ids=np.ascontiguousarray(self.ids[rows])),
            self.x[rows],
            self.routing[rows],
        )


def with_x(tokens: MoeTokens, x: np.ndarray, routing: np.ndarray | None = None) -> MoeTokens:
    """The same ids with other values, which must be values of the types."""
    routing = tokens.routing if routing is None else routing
    return replace(
        tokens,
        x=x,
        x_data=encode(x, tokens.x_type),
        routing=routing,
        routing_data=encode(routing, tokens.routing_type),
    )


def make_tokens(
    ids: np.ndarray, hidden: int, *, x_type: str = "float", routing_type: str = "float", seed: int = 0
) -> MoeTokens:
    """Normal X [T, hidden] and routing weights in [-1, 1) for these ids [T, k]."""
    rng = np.random.default_rng(seed)
    x_data = encode(rng.standard_normal((len(ids), hidden)), x_type)
    routing_data = encode(rng.uniform(-1, 1, ids.shape), routing_type)
    return MoeTokens(
        decode(x_data, x_type).reshape(len(ids), hidden),
        x_data,
        x_type,
        np.ascontiguousarray(ids),
        decode(routing_data, routing_type).reshape(ids.shape),
        routing_data,
        routing_type,
    )


def random_ids(
    tokens: int, k: int, experts: int | Sequence[int], *, dtype: type = np.int64, seed: int = 0, repeats: bool = False
) -> np.ndarray:
    """k experts for each token, all different (unless `repeats`), from ``range(experts)`` or from this list."""
    rng = np.random.default_rng(seed)
    choices = np.arange(experts) if isinstance(experts, int) else np.asarray(experts)
    if repeats:
        return rng.choice(choices, (tokens, k)).astype(dtype)
    order = np.argsort(rng.random((tokens, len(choices))), axis=1)[:, :k]
    return choices[order].astype(dtype)
