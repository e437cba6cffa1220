"""What the operator ``ort_hina::Router`` computes: one description for everything that finds, makes or checks routers."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class RouterSpec:
    """The attributes of a Router, as ``docs/operators.md`` explains them.

    Scores of all experts are computed from the logits (`score`), a bias is added for the selection alone, experts outside
    the best groups are out of the selection, and the k best are chosen. Their weights come from the scores without
    the bias.
    """

    k: int
    score: str = "softmax"
    """Over all experts: ``softmax``, ``sigmoid``, ``none`` (the logits themselves) or ``sparse_mixer`` (Phi-3.5-MoE)."""
    num_groups: int = 1
    top_groups: int = 1
    """How many of the groups may be chosen from."""
    group_score: str = "max"
    """What a group is worth: the ``max`` of its (biased) scores, or ``top2_sum``, the sum of its two best."""
    masked_score: float = 0.0
    """What the scores of experts in other groups are replaced with before the selection: 0 or -inf."""
    weight_function: str = "none"
    """Of the k chosen scores: ``none``, ``softmax`` (over the k) or ``sigmoid`` (of each)."""
    normalize: bool = False
    """Divide by ``max(sum, normalize_min) + normalize_epsilon``."""
    normalize_epsilon: float = 0.0
    normalize_min: float = 0.0
    scale: float = 1.0
    """The weights are multiplied by it at the end."""
    jitter: float = 0.0
    """``sparse_mixer`` only: the width of its threshold."""


@dataclass(frozen=True)
class RouterCall:
    """A Router with its inputs: `logits` [tokens, experts] (or [B, S, experts]), and the selection's bias [experts]."""

    spec: RouterSpec
    logits: ir.Value
    bias: ir.Value | None = None
