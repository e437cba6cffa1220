"""What every MoE fusion hands to the rewriter: one layer, independent of how the graph spelled it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .meanings import Expert, Linear


@dataclass(frozen=True)
class Refused:
    """A layer that stays as it is: why, and the node that shows it."""

    where: str
    reason: str
    node: str
    experts_found: int
    num_experts: int | None
    k: int


@dataclass(frozen=True)
class MoELayer:
    """A mixture of experts between `x` [T, H], `ids` [T, k], `weights` [T, k] and `output` [T, H].

    `nodes` are all that computes `output` from those, in the graph's order. `onlooked` are the values from outside of
    which the nodes read nothing but the shape, each with its rank.
    """

    where: str
    x: ir.Value
    ids: ir.Value
    weights: ir.Value
    output: ir.Value
    k: int
    experts: tuple[Expert, ...]
    nodes: tuple[ir.Node, ...]
    onlooked: tuple[tuple[ir.Value, int], ...]

    @property
    def num_experts(self) -> int:
        return len(self.experts)

    @property
    def hidden_size(self) -> int:
        return self.experts[0].gate.matrix.inputs

    @property
    def intermediate_size(self) -> int:
        return self.experts[0].gate.matrix.outputs

    @property
    def activation(self) -> str:
        return self.experts[0].activation

    @property
    def dtype(self) -> ir.DataType:
        return self.experts[0].gate.matrix.dtype

    @property
    def layout(self) -> str:
        """How the gate matrices are stored, N being the outputs."""
        return "[N, K]" if self.experts[0].gate.matrix.strides[0] == 1 else "[K, N]"

    def roles(self) -> Iterator[tuple[str, list[Linear]]]:
        """``gate``, ``up`` (not of a plain FFN) and ``down``, each with one Linear for every expert."""
        for role in ("gate", "up", "down"):
            linears = [getattr(expert, role) for expert in self.experts]
            if linears[0] is not None:
                yield role, linears
