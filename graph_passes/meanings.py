"""What a value of the graph *means* inside a mixture of experts.

The recogniser walks the graph once, forwards, and gives a value a meaning when the operator and the meanings of its
inputs prove it: these are the expert ids; this is the mask of expert 5; these are the rows of X whose tokens chose
expert 5. Nothing is concluded from names. A value that the rules do not understand has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from .dims import Dim


class Refusal(Exception):
    """A rule applies to a node, and the node is not what a mixture of experts needs. The text is for the user."""


class Axis(NamedTuple):
    """A dimension with its role: ``token``, ``slot``, ``expert``, ``pick`` (the (token, slot) pairs that chose one
    expert), ``coordinate`` (NonZero's first axis), ``feature``, ``one`` or ``repeat`` (an expanded ``one``)."""

    role: str
    size: Dim


Axes = tuple[Axis, ...]


@dataclass(eq=False)
class Routing:
    """One router: the TopK that chooses experts. `num_experts` is the width of its scores, or what OneHot says."""

    node: ir.Node
    ids: ir.Value
    k: int
    tokens: Dim
    num_experts: int | None = None
    dispatch: ir.Node | None = None
    """The node that first compared the ids with expert numbers."""
    experts_seen: set[int] = field(default_factory=set)
    """Experts whose mask the graph takes, whether or not their body is understood."""
    sums: list[tuple[ir.Value, "PartialSum"]] = field(default_factory=list)
    obstacles: list[tuple[ir.Node, str]] = field(default_factory=list)
    values: set[ir.Value] = field(default_factory=set)
    """Every value with a meaning that belongs to this router."""


@dataclass(frozen=True)
class Selection:
    """The (token, slot) pairs that chose `expert`, in the order in which NonZero lists them: `order` names the
    coordinates from the outer to the inner one. Two lists line up only if their selections are equal."""

    routing: Routing
    expert: int
    order: tuple[str, ...]


@dataclass(frozen=True)
class Meaning:
    routing: Routing
    axes: Axes


@dataclass(frozen=True)
class Ids(Meaning):
    """Expert ids, (token, slot)."""


@dataclass(frozen=True)
class OneHotIds(Meaning):
    """1 where the expert is the chosen one: token, slot and expert axes in any order."""


@dataclass(frozen=True)
class ExpertMask(Meaning):
    """Non-zero where (token, slot) chose `expert`."""

    expert: int


@dataclass(frozen=True)
class Coordinates(Meaning):
    """NonZero of an expert mask: one row (or, transposed, one column) for each coordinate."""

    selection: Selection


@dataclass(frozen=True)
class PickIndex(Meaning):
    """For each pick the integer ``token_factor * token + slot_factor * slot``."""

    selection: Selection
    token_factor: Dim
    slot_factor: Dim


@dataclass(frozen=True)
class PickWeight(Meaning):
    """For each pick its element of the routing weights `weights` [tokens, k]."""

    selection: Selection
    weights: ir.Value
    dtype: ir.DataType | None


@dataclass(frozen=True)
class Matrix:
    """A constant matrix that maps `inputs` to `outputs` features, as it is stored; strides in elements."""

    tensor: ir.TensorProtocol
    inputs: int
    outputs: int
    strides: tuple[int, int]

    @property
    def dtype(self) -> ir.DataType:
        return self.tensor.dtype


@dataclass(frozen=True)
class Tokens:
    """The rows of X, unchanged."""


@dataclass(frozen=True)
class Linear:
    """Rows times a matrix, plus a bias."""

    matrix: Matrix
    bias: ir.TensorProtocol | None = None


@dataclass(frozen=True)
class Partway:
    """A step on the way to an activation: `step` names what was done to `linear`."""

    step: str
    linear: Linear


@dataclass(frozen=True)
class Activated:
    """An activation of `linear`, named as the operator MoE names it."""

    name: str
    linear: Linear


@dataclass(frozen=True)
class Hidden:
    """``activation(gate) * up``."""

    activated: Activated
    up: Linear


@dataclass(frozen=True)
class Expert:
    """The output of one expert. `up` is None for a plain FFN."""

    activation: str
    gate: Linear
    up: Linear | None
    down: Linear


@dataclass(frozen=True)
class Rows(Meaning):
    """One row of features for each pick, computed from the row of `source` (X) of its token; `form` says how."""

    selection: Selection
    source: ir.Value
    form: Tokens | Linear | Partway | Activated | Hidden | Expert
    dtype: ir.DataType | None


@dataclass(frozen=True)
class Contribution(Meaning):
    """An expert's output for each pick, times the pick's routing weight."""

    selection: Selection
    source: ir.Value
    weights: ir.Value
    expert: Expert
    dtype: ir.DataType


@dataclass(frozen=True)
class PartialSum(Meaning):
    """Contributions of some experts, added up for each token: a tree, so that adding one costs the same for all."""

    parts: tuple["PartialSum | Contribution", ...]
    count: int
    dtype: ir.DataType

    def contributions(self) -> list[Contribution]:
        """All of them, in the order in which they are added."""
        found, pending = [], [self]
        while pending:
            part = pending.pop()
            if isinstance(part, Contribution):
                found.append(part)
            else:
                pending.extend(reversed(part.parts))
        return found
