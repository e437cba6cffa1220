"""Random inputs of a MoE node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .elements import decode, encode


@dataclass(frozen=True)
class MoeTokens:
    """X, expert_ids, expert_weights and addend.

    Attributes:
        x, routing: their values, float64 [T, H] and [T, k].
        x_data, routing_data: their bytes.
        ids: int32 or int64 [T, k].
        omit: which of "ids" and "weights" the node is not given, since they say what it assumes (`ids` name every expert
            in order, `routing` is 1).
        addend: values of the type of x, float64 [T, H]; None: the node gets none.
    """

    x: np.ndarray
    x_data: np.ndarray
    x_type: str
    ids: np.ndarray
    routing: np.ndarray
    routing_data: np.ndarray
    routing_type: str
    omit: frozenset[str] = frozenset()
    addend: np.ndarray | None = None
    addend_data: np.ndarray | None = field(default=None, repr=False)

    def head(self, tokens: int) -> MoeTokens:
        """The first `tokens` of them."""
        return self.take(np.arange(tokens))

    def take(self, rows: np.ndarray) -> MoeTokens:
        """These tokens, in this order."""
        taken = replace(self, ids=np.ascontiguousarray(self.ids[rows]))
        if self.addend is not None:
            taken = with_addend(taken, self.addend[rows])
        return with_x(taken, self.x[rows], self.routing[rows])


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


def with_addend(tokens: MoeTokens, addend: np.ndarray) -> MoeTokens:
    """With this addend, float64 [T, H], as far as the type of x can hold it."""
    data = encode(addend, tokens.x_type)
    return replace(tokens, addend=decode(data, tokens.x_type).reshape(addend.shape), addend_data=data)


def without_ids(tokens: int, experts: int, hidden: int, *, weights: bool = False, **arguments) -> MoeTokens:
    """`make_tokens` for a node that is given no ids: every token goes to every expert. `weights`: it is given those."""
    made = make_tokens(np.tile(np.arange(experts), (tokens, 1)), hidden, **arguments)
    return replace(made, omit=frozenset({"ids"})) if weights else without_weights(replace(made, omit=frozenset({"ids"})))


def without_weights(tokens: MoeTokens) -> MoeTokens:
    """The same tokens for a node that is given no weights: all are 1."""
    ones = with_x(tokens, tokens.x, np.ones_like(tokens.routing))
    return replace(ones, omit=tokens.omit | {"weights"})


def make_tokens(
    ids: np.ndarray,
    hidden: int,
    *,
    x_type: str = "float",
    routing_type: str = "float",
    addend: bool = False,
    seed: int = 0,
) -> MoeTokens:
    """Normal X [T, hidden], routing weights in [-1, 1) for these ids [T, k] and, if asked for, a normal addend."""
    rng = np.random.default_rng(seed)
    x_data = encode(rng.standard_normal((len(ids), hidden)), x_type)
    routing_data = encode(rng.uniform(-1, 1, ids.shape), routing_type)
    tokens = MoeTokens(
        decode(x_data, x_type).reshape(len(ids), hidden),
        x_data,
        x_type,
        np.ascontiguousarray(ids),
        decode(routing_data, routing_type).reshape(ids.shape),
        routing_data,
        routing_type,
    )
    return with_addend(tokens, rng.standard_normal((len(ids), hidden))) if addend else tokens


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
