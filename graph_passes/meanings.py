"""What a value of the graph *means* inside a mixture of experts.

The recogniser walks the graph once, forwards, and gives a value a meaning when the operator and the meanings of its
inputs prove it: these are the expert ids; this is the mask of expert 5; these are the rows of X whose tokens chose
expert 5. Nothing is concluded from names. A value that the rules do not understand has no meaning.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from .constant_views import ConstantView
from .dims import Dim


class Refusal(Exception):
    """A rule applies to a node, and the node is not what a mixture of experts needs. The text is for the user."""


class Axis(NamedTuple):
    """A dimension with its role: ``token``, ``slot``, ``expert``, ``pick`` (the (token, slot) pairs that chose one expert),
    ``place`` (the pairs in the order of their experts), ``coordinate`` (NonZero's first axis), ``feature``, ``one``, or
    ``repeat`` (an expanded ``one``). A ``joined`` axis runs over its parts, the first of them outermost; tokens may be
    split over several axes, in order."""

    role: str
    size: Dim
    parts: tuple[Axis, ...] = ()


Axes = tuple[Axis, ...]


@dataclass(eq=False)
class Routing:
    """One router: the node that chooses experts. `num_experts` is the width of its scores, or what OneHot says."""

    node: ir.Node
    ids: ir.Value
    k: int | None
    tokens: Dim
    num_experts: int | None = None
    distinct: bool = True
    """Whether the experts of a token are proved to differ (TopK takes each position once)."""
    dispatch: ir.Node | None = None
    """The node that first uses the ids to choose experts."""
    experts_seen: set[int] = field(default_factory=set)
    """Experts whose mask the graph takes, whether or not their body is understood."""
    sorts: list[ir.Node] = field(default_factory=list)
    """The nodes that sort the (token, slot) pairs by expert."""
    sums: list[tuple[ir.Value, PartialSum]] = field(default_factory=list)
    obstacles: list[tuple[ir.Node, str]] = field(default_factory=list)
    values: set[ir.Value] = field(default_factory=set)
    """Every value with a meaning that belongs to this router."""


@dataclass(frozen=True)
class Picks:
    """The (token, slot) pairs that chose `expert`, in the order in which NonZero lists them: `order` names the
    coordinates from the outer to the inner one. Two lists line up only if their selections are equal."""

    routing: Routing
    expert: int
    order: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Every (token, slot) pair: the expert is the one that the pair chose."""

    routing: Routing


@dataclass(frozen=True)
class Sorted:
    """Every (token, slot) pair, in the order of their experts that the node `sort` found."""

    routing: Routing
    sort: ir.Node


@dataclass(frozen=True)
class SortedRange:
    """Those of a `Sorted` that chose `expert`: neighbours."""

    whole: Sorted
    expert: int


@dataclass(frozen=True)
class EveryExpert:
    """Every token with every expert of a stack (weights of zero take out those that were not chosen)."""


@dataclass(frozen=True)
class Every:
    """Every token."""


Selection = Picks | Pairs | Sorted | SortedRange | EveryExpert | Every


@dataclass(frozen=True)
class Meaning:
    routing: Routing | None
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
class Hits(Meaning):
    """For each expert, whether (or how often) any token chose it; or, as `listed`, the numbers of the experts hit."""

    listed: bool = False


@dataclass(frozen=True)
class Coordinates(Meaning):
    """NonZero of an expert mask: one row (or, transposed, one column) for each coordinate."""

    selection: Picks


@dataclass(frozen=True)
class PickIndex(Meaning):
    """For each pick the integer ``token_factor * token + slot_factor * slot``."""

    selection: Picks
    token_factor: Dim
    slot_factor: Dim


@dataclass(frozen=True)
class RoutingWeights(Meaning):
    """Elements of the routing weights `weights` [tokens, k], laid out as the axes say: for each (token, slot), for each pick
    of one expert, for each place of the sorted pairs, or for each (token, expert), zero where the token did not choose it."""

    selection: Selection
    weights: ir.Value
    dtype: ir.DataType | None
    function: str = "none"
    """``sigmoid`` or ``softmax`` (over the k): still to be applied to `weights`."""
    fill: float = 0.0
    """`EveryExpert` only: what stands where the token did not choose the expert."""


@dataclass(frozen=True)
class PlaceIndex(Meaning):
    """For each place of the sorted pairs, the number of its ``pair``, ``token``, ``slot`` or ``expert``; or nothing but 0
    (``zero``). ``binned``: the expert's number divided by `divisor`, on its way through a histogram."""

    whole: Sorted
    what: str
    divisor: float = 1.0


@dataclass(frozen=True)
class Counts(Meaning):
    """How many (token, slot) pairs chose an expert. As a vector one number for each expert: of it alone, or (`summed`) of it
    and those before it. As a single number: of the experts `first` up to, but without, `end`."""

    summed: bool = False
    first: int = 0
    end: int | None = None


@dataclass(frozen=True)
class ExpertPlaces(Meaning):
    """The places of one expert's pairs among the sorted pairs."""

    selection: SortedRange


@dataclass(frozen=True)
class PairPlaces(Meaning):
    """For each (token, slot) pair its place among the sorted pairs."""

    whole: Sorted


@dataclass(frozen=True)
class ChosenConstant(Meaning):
    """For each pair (or place) the part of the constant `view` that belongs to its expert. The axes after those of the ids
    have the roles ``stored1``, ``stored2``: the axes of the constant."""

    selection: Pairs | Sorted
    view: ConstantView


@dataclass(frozen=True)
class Matrix:
    """A constant matrix that maps `inputs` to `outputs` features, as it is stored: element (k, n) lies `offset` +
    ``k * strides[0] + n * strides[1]`` elements into `tensor`. A stack has one for each of `experts`, `expert_stride` apart.
    """

    tensor: ir.TensorProtocol
    inputs: int
    outputs: int
    strides: tuple[int, int]
    offset: int = 0
    experts: int | None = None
    expert_stride: int = 0

    @property
    def dtype(self) -> ir.DataType:
        return self.tensor.dtype

    def of(self, expert: int) -> Matrix:
        """One matrix of a stack."""
        return dataclasses.replace(self, offset=self.offset + expert * self.expert_stride, experts=None, expert_stride=0)


@dataclass(frozen=True)
class Vector:
    """A constant vector (a bias), stored like a `Matrix`."""

    tensor: ir.TensorProtocol
    size: int
    stride: int = 1
    offset: int = 0
    experts: int | None = None
    expert_stride: int = 0

    @property
    def dtype(self) -> ir.DataType:
        return self.tensor.dtype

    def of(self, expert: int) -> Vector:
        return dataclasses.replace(self, offset=self.offset + expert * self.expert_stride, experts=None, expert_stride=0)


@dataclass(frozen=True)
class Linear:
    """Rows times a matrix, plus a bias."""

    matrix: Matrix
    bias: Vector | None = None

    def of(self, expert: int) -> Linear:
        return Linear(self.matrix.of(expert), None if self.bias is None else self.bias.of(expert))


@dataclass(frozen=True)
class Activation:
    """An activation as the operator MoE names it; `alpha`, `beta` and `limit` only of ``swiglu_oai``."""

    name: str
    alpha: float | None = None
    beta: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Expert:
    """The output of one expert (or of each expert of a stack). `up` is None for a plain FFN."""

    activation: Activation
    gate: Linear
    up: Linear | None
    down: Linear

    def of(self, expert: int) -> Expert:
        up = None if self.up is None else self.up.of(expert)
        return Expert(self.activation, self.gate.of(expert), up, self.down.of(expert))


@dataclass(frozen=True)
class SeparateExperts(Expert):
    """Experts whose matrices lie in no stack: `each` of them; as an `Expert` it is the first."""

    each: tuple[Expert, ...] = ()

    def of(self, expert: int) -> Expert:
        return self.each[expert]


@dataclass(frozen=True)
class Tokens:
    """The rows of X, unchanged."""


@dataclass(frozen=True)
class Function:
    """An elementwise function of matrix products: ``sigmoid``, ``mul``, ``clip``, …, as a small tree. Operands of ``mul``
    and ``add`` are in no order."""

    name: str
    operands: tuple[Linear | Function | float, ...]


@dataclass(frozen=True)
class Gated:
    """``sigmoid(x · gate)`` times an expert's output."""

    gate: Linear
    expert: Expert


@dataclass(frozen=True)
class Rows(Meaning):
    """Rows of features computed from those of X (`source`): `selection` says which, and `form` how. Of a stack of experts
    the matrices in `form` are stacks."""

    selection: Selection
    source: ir.Value
    form: Tokens | Linear | Function | Expert | Gated
    dtype: ir.DataType | None
    scaled: RoutingWeights | None = None
    """The rows of X were multiplied by these weights first (Llama-4)."""


@dataclass(frozen=True)
class Contribution(Meaning):
    """Outputs of experts times their routing weights."""

    selection: Selection
    source: ir.Value
    weights: RoutingWeights
    expert: Expert
    dtype: ir.DataType
    weight_on: str = "output"


@dataclass(frozen=True)
class PartialSum(Meaning):
    """Contributions added up for each token: a tree, so that adding one costs the same for all."""

    parts: tuple[PartialSum | Contribution, ...]
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
