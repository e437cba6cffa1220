"""What every recogniser of attention hands to the rewriter: one layer, independent of how the graph spelled it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
    "query_seqlens",
    "attention_mask",
)
"""The inputs of ``ort_hina::GroupQueryAttention``, in order (docs/operators.md)."""


@dataclass(frozen=True)
class RefusedAttention:
    """Attention that stays as it is: where it is, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class AttentionLayer:
    """Attention between `query` and `output`, with the caches that it extends.

    The fields that `INPUTS` names are inputs of the node, with its shapes; the others up to `qk_norm_epsilon` are its
    attributes. `nodes` are what it stands for, in the graph's order; all of them, or all but what others use too, are
    left without a user once it is there.
    """

    where: str
    query: ir.Value
    key: ir.Value | None
    value: ir.Value | None
    output: ir.Value
    """What the node's first output replaces, as `output_axes` says."""
    num_heads: int
    kv_num_heads: int
    head_size: int
    """Of query and key."""
    value_head_size: int
    nodes: tuple[ir.Node, ...]
    output_axes: str = "joined"
    """``joined``: (B, S, num_heads · value_head_size), or ``heads first``: (B, num_heads, S, value_head_size)."""
    past_key: ir.Value | None = None
    past_value: ir.Value | None = None
    present_key: ir.Value | None = None
    """What the node's second and third outputs replace, if the graph uses them."""
    present_value: ir.Value | None = None
    seqlens_k: ir.Value | None = None
    total_sequence_length: ir.Value | None = None
    cos_cache: ir.Value | None = None
    sin_cache: ir.Value | None = None
    position_ids: ir.Value | None = None
    attention_bias: ir.Value | None = None
    head_sink: ir.Value | None = None
    q_norm_weight: ir.Value | None = None
    k_norm_weight: ir.Value | None = None
    attention_mask: ir.Value | None = None
    scale: float = 0.0
    """0: 1 / sqrt(head_size)."""
    softcap: float = 0.0
    local_window_size: int = -1
    causal: bool = True
    rotary_interleaved: bool = False
    smooth_softmax: bool = False
    qk_norm_epsilon: float = 1e-6
    dtype: ir.DataType | None = None
    """Of query, key, value, caches and output."""
    output_dtype: ir.DataType | None = None
    """What the graph takes the output in, if that is another type."""
    dropped_mask: ir.Value | None = None
    """What the graph masks scores with, (B or 1, heads or 1, S, T), where the node is proved to do the same by itself."""
    before: tuple[ir.Node, ...] = ()
    """New nodes that compute some of the inputs, in order. Layers may share them: those that are in the graph already are
    left where they are."""
    pattern: str = ""
    """Which spelling it was, for the report."""
    notes: tuple[str, ...] = ()
    """What stays in the graph, and why, for the report."""

    def inputs(self) -> list[ir.Value | None]:
        """The node's inputs, without the empty ones at the end."""
        values = [getattr(self, name, None) for name in INPUTS]
        while values and values[-1] is None:
            values.pop()
        return values

    def with_values(self, current: Callable[[ir.Value | None], ir.Value | None]) -> AttentionLayer:
        """The same layer, reading what `current` gives for each value that it reads from the graph."""
        return dataclasses.replace(
            self, **{name: current(getattr(self, name)) for name in INPUTS if getattr(self, name, None) is not None}
        )
