"""A MoE node without ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ort_hina import _native

from .elements import decode
from .guard import guarded
from .levels import product_type
from .moe_reference import Bounded, reference
from .moe_tokens import MoeTokens
from .moe_weights import MoeWeights
from .page_maps import Runs


class NativeMoe:
    """The operator on NumPy arrays, at one instruction level (empty: as chosen)."""

    def __init__(
        self, weights: MoeWeights, isa: str = "", *, guard: bool = False, bf16_compute: bool = False,
        numa: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`guard`: every operand ends where a forbidden page begins. `numa`: made-up nodes (`made_up_nodes`)."""
        self._protect = guarded if guard else np.asarray
        windows = [(self._protect(data), kind) for data, kind in weights.windows]
        self._moe = _native.Moe(weights.attributes, windows, isa, bf16_compute, numa)

    def run(self, tokens: MoeTokens, threads: int = 1) -> np.ndarray:
        """Y, float64 [T, H]."""
        data = self._moe.run(
            self._protect(tokens.x_data),
            tokens.x_type,
            None if "ids" in tokens.omit else self._protect(tokens.ids),
            None if "weights" in tokens.omit else self._protect(tokens.routing_data),
            tokens.routing_type,
            threads,
            None if tokens.addend is None else self._protect(tokens.addend_data),
        )
        return decode(data, tokens.x_type).reshape(tokens.x.shape)


def made_up_nodes(maps: list[Runs], nodes: int, threads: Sequence[int | None]) -> dict[str, Any]:
    """A machine of several nodes: where each window lies, and on which node each participant of a region runs."""
    return {"maps": maps, "nodes": nodes, "threads": list(threads)}


def expected(weights: MoeWeights, tokens: MoeTokens, isa: str = "", *, bf16_compute: bool = False) -> Bounded:
    """Y in float64 with the roundings of this level, and what the node's may differ from it."""
    return _reference(weights, tokens, isa, bf16_compute, follow=True)


def exact(weights: MoeWeights, tokens: MoeTokens, isa: str = "", *, bf16_compute: bool = False) -> Bounded:
    """Y in exact arithmetic, and what this level promises not to exceed (docs/operators.md)."""
    return _reference(weights, tokens, isa, bf16_compute, follow=False)


def _reference(weights: MoeWeights, tokens: MoeTokens, isa: str, bf16_compute: bool, follow: bool) -> Bounded:
    return reference(
        weights, tokens.x, tokens.ids, tokens.routing, tokens.x_type,
        lambda kind: product_type(isa, kind, bf16_compute), follow=follow, addend=tokens.addend,
    )  # fmt: skip


def assert_within(y: np.ndarray, exact: Bounded) -> None:
    """Each output lies within its own bound (NaN never does)."""
    inside = np.abs(y - exact.value) <= exact.error
    if inside.all():
        return
    at = tuple(int(i) for i in np.argwhere(~inside)[0])
    raise AssertionError(
        f"{(~inside).sum()} of {inside.size} outputs lie outside their bounds; the first, {at}: "
        f"got {y[at]!r}, expected {exact.value[at]!r} ± {exact.error[at]:.3g}"
    )
