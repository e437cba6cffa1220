"""What every MoE fusion hands to the rewriter: one layer, independent of how the graph spelled it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .meanings import Activation, Expert, Linear, Vector
from .router_spec import RouterCall


@dataclass(frozen=True)
class Refused:
    """A layer that stays as it is: why, and the node that shows it."""

    where: str
    reason: str
    node: str
    experts_found: int
    num_experts: int | None
    k: int | None
    missing_experts: tuple[int, ...] = ()


@dataclass(frozen=True)
class MoELayer:
    """A mixture of experts between `x` [..., H] and `output` [..., H].

    Who is chosen: `ids` and `weights` [T, k] are values of the graph; or `router` is to compute them; or all three are
    None, and every token goes to every expert with weight 1. `nodes` are all that computes `output` from those, in the
    graph's order. `onlooked` are the values from outside of which the nodes read nothing but the shape, each with its rank.
    """

    where: str
    x: ir.Value
    ids: ir.Value | None
    weights: ir.Value | None
    output: ir.Value
    k: int
    experts: tuple[Expert | None, ...]
    """None: the file does not hold this expert; whoever chooses it gets nothing from it."""
    nodes: tuple[ir.Node, ...]
    onlooked: tuple[tuple[ir.Value, int], ...] = ()
    router: RouterCall | None = None
    weight_on: str = "output"
    """``input``: the expert sees weight * x (Llama-4)."""
    weight_function: str = "none"
    """``sigmoid``: of `weights`, before they are used."""
    sigmoid_gate: Vector | None = None
    """Every expert's weight is multiplied by sigmoid(x . gate) (the shared expert of Qwen2-MoE)."""
    pattern: str = ""
    """Which spelling it was, for the report."""
    source: ir.Value | None = None
    """What `nodes` read the tokens from: `x`, or another view of the same rows."""
    ranks: tuple[int, int] = (2, 2)
    """Of `source` and of `x`."""
    dtypes: tuple[ir.DataType | None, ir.DataType | None] = (None, None)
    """Of the tokens and of the routing weights; None: as the experts' weights."""

    @property
    def is_routed(self) -> bool:
        return self.ids is not None or self.router is not None

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What the layer reads from the graph, besides constants."""
        routed = (self.ids, self.weights) if self.router is None else (self.router.logits,)
        return (self.x, *(value for value in routed if value is not None))

    @property
    def known(self) -> Expert:
        """An expert that the file holds: all of them have the same sizes, types, layout and activation."""
        return next(expert for expert in self.experts if expert is not None)

    @property
    def missing(self) -> list[int]:
        return [number for number, expert in enumerate(self.experts) if expert is None]

    @property
    def num_experts(self) -> int:
        return len(self.experts)

    @property
    def hidden_size(self) -> int:
        return self.known.gate.matrix.inputs

    @property
    def intermediate_size(self) -> int:
        return self.known.gate.matrix.outputs

    @property
    def activation(self) -> Activation:
        return self.known.activation

    @property
    def dtype(self) -> ir.DataType:
        return self.known.gate.matrix.dtype

    @property
    def layout(self) -> str:
        """How the gate matrices are stored, N being the outputs."""
        return "[N, K]" if self.known.gate.matrix.strides[0] == 1 else "[K, N]"

    def roles(self) -> Iterator[tuple[str, list[Linear | None]]]:
        """``gate``, ``up`` (not of a plain FFN) and ``down``, each with one Linear for every expert."""
        for role in ("gate", "up", "down"):
            if getattr(self.known, role) is not None:
                yield role, [expert and getattr(expert, role) for expert in self.experts]
