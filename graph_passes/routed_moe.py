"""Fusion: experts that a router chooses among, however the graph gets the tokens to them and back.

The rules give values their meanings; here the value that is the whole weighted sum of a router's experts is found, and
what computes it is checked as one: complete, alike, and of no interest to anybody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import onnx_ir as ir

from . import combine, dispatch, expert_ffn, pairs, routing, sorted_pairs, views
from .axes import sizes
from .meanings import (
    Axes,
    Contribution,
    Every,
    EveryExpert,
    Expert,
    Linear,
    Pairs,
    PartialSum,
    Picks,
    Routing,
    Rows,
)
from .moe_layer import MoELayer, Refused
from .recogniser import Recogniser
from .slices import inner_nodes, where_of

RULE_TABLES = (
    sorted_pairs.RULES,
    routing.RULES,
    dispatch.RULES,
    pairs.RULES,
    combine.RULES,
    expert_ffn.RULES,
    views.RULES,
)
WEIGHT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_PATTERNS = {
    Picks: "one expert after the other",
    Pairs: "weights gathered for each choice",
    EveryExpert: "all experts for all tokens",
}


def find(graph: ir.Graph, recogniser: Recogniser | None = None) -> list[MoELayer | Refused]:
    """Every routed MoE layer of `graph`, in order: understood, or refused with its reason. The graph is not changed.

    A layer that lacks experts is found with None in their place: whether that is wanted is for others to decide.
    """
    order = {node: place for place, node in enumerate(graph)}
    recogniser = recogniser or walked(order)
    candidates = [candidate for candidate in recogniser.routings if _is_dispatched(candidate)]
    return [layer for candidate in candidates for layer in _check(candidate, recogniser, order)]


def walked(nodes: Iterable[ir.Node]) -> Recogniser:
    """A recogniser that has seen `nodes` (in topological order)."""
    recogniser = Recogniser(RULE_TABLES)
    recogniser.walk(nodes)
    return recogniser


def _is_dispatched(candidate: Routing) -> bool:
    """A TopK alone is not a router (sampling has one too): somebody must choose experts by its ids."""
    return candidate.dispatch is not None or bool(candidate.sums)


def _check(candidate: Routing, recogniser: Recogniser, order: dict[ir.Node, int]) -> list[MoELayer | Refused]:
    """The layers that `candidate` routes: one, unless several networks share its choice."""
    try:
        sums = _complete_sums(candidate)
    except NotFusable as refused:
        return [_refused(candidate, refused)]
    return [_longest(candidate, views, recogniser, order) for views in sums]


def _longest(
    candidate: Routing, views: list[tuple[ir.Value, PartialSum]], recogniser: Recogniser, order: dict[ir.Node, int]
) -> MoELayer | Refused:
    """The layer up to the last of `views` of its sum that can be its output: what reshapes the sum goes with it."""
    for output, total in reversed(views):
        try:
            return _layer(candidate, output, total, recogniser, order)
        except NotFusable as refused:
            reason = refused
    return _refused(candidate, reason)


def _refused(candidate: Routing, refused: NotFusable) -> Refused:
    node, reason = refused.node, str(refused)
    if repr(node.name) not in reason:
        reason = f"{reason} ({node.op_type} {node.name!r})"
    where = where_of(candidate.dispatch or candidate.node)
    return Refused(where, reason, node.name or node.op_type, len(candidate.experts_seen), candidate.num_experts, candidate.k)


class NotFusable(Exception):
    """A layer that is recognised and stays as it is: why, and the node that shows it."""

    def __init__(self, reason: str, node: ir.Node) -> None:
        super().__init__(reason)
        self.node = node


def _complete_sums(candidate: Routing) -> list[list[tuple[ir.Value, PartialSum]]]:
    """Each sum over every expert that the graph holds, once: all values that are it, in order."""
    if candidate.num_experts is None:
        raise _obstacle(candidate, "nothing in the graph tells how many experts the router chooses from")
    if not candidate.experts_seen and not candidate.sums:
        raise _obstacle(candidate, "no expert's share of the tokens is taken from the router's choice")
    largest = max((total.count for _, total in candidate.sums), default=0)
    if largest < max(1, len(candidate.experts_seen)):
        raise _obstacle(candidate, "the experts are not summed")
    # A sum in float of 16-bit outputs is not yet what the layer hands on.
    complete = [(value, total) for value, total in candidate.sums if total.count == largest]
    typed = [(value, total) for value, total in complete if total.dtype == _dtype_of(total)] or complete
    sums: dict[int, list[tuple[ir.Value, PartialSum]]] = {}
    for value, total in typed:
        sums.setdefault(id(total.contributions()[0]), []).append((value, total))
    for views in sums.values():
        output, total = views[0]
        summed = Counter(part.selection.expert for part in total.contributions() if isinstance(part.selection, Picks))
        twice = sorted(expert for expert, times in summed.items() if times > 1)
        if twice:
            raise NotFusable(f"experts {_numbers(twice)} are added more than once", output.producer())
    return list(sums.values())


def _dtype_of(total: PartialSum) -> ir.DataType:
    return total.contributions()[0].expert.down.matrix.dtype


def _obstacle(candidate: Routing, otherwise: str) -> NotFusable:
    """The first thing on the way that was not understood, or else `otherwise`."""
    if not candidate.obstacles:
        return NotFusable(otherwise, candidate.dispatch)
    node, reason = candidate.obstacles[0]
    return NotFusable(f"{reason} ({node.op_type} {node.name!r})", node)


def _layer(
    candidate: Routing, output: ir.Value, total: PartialSum, recogniser: Recogniser, order: dict[ir.Node, int]
) -> MoELayer:
    parts = total.contributions()
    at = output.producer()
    first = _common(parts, at)
    experts = _experts(candidate, parts)
    known = [expert for expert in experts if expert is not None]
    _check_alike(known, at)
    check_expert(known[0], at)
    for expert in known[1:]:
        _check_layout(expert, at)
    if candidate.k > len(experts):
        raise NotFusable(f"the router chooses {candidate.k} of {len(experts)} experts", candidate.node)
    x = tokens_like(total.axes, first.source, recogniser, order, at)
    if x is None:
        raise NotFusable(
            "the sum of experts is not proved to have the shape of the tokens (the graph carries too little shape "
            "information; onnx.shape_inference.infer_shapes_path may add it)",
            at,
        )
    weights = first.weights.weights
    nodes, onlooked = inner_nodes(output, {candidate.ids, weights, first.source}, order)
    check_private(recogniser, nodes, output)
    shaped = tuple((value, _size_by_tokens(recogniser, value, first.source)) for value in onlooked)
    return MoELayer(
        where_of(at),
        x,
        candidate.ids,
        weights,
        output,
        candidate.k,
        experts,
        nodes,
        shaped,
        weight_on=first.weight_on,
        weight_function=first.weights.function,
        pattern="tokens sorted by expert" if candidate.sorts else _PATTERNS[type(first.selection)],
        source=first.source,
        ranks=(len(recogniser.shapes.shape(first.source)), len(total.axes)),
        dtypes=(recogniser.dtype(first.source), first.weights.dtype),
    )


def _size_by_tokens(recogniser: Recogniser, value: ir.Value, source: ir.Value) -> tuple[tuple[int, bool], ...]:
    """The shape of `value` for one sequence of T tokens: each dimension an integer, and whether T times that. What nothing
    tells is taken for tokens before they are flattened: [1, T, features]."""
    numbers = recogniser.shapes.integers(value)
    if numbers is not None:
        return () if numbers.is_scalar else ((len(numbers.items), False),)
    dims = recogniser.shapes.dims
    shape = recogniser.shapes.shape(value)
    lead = [dims.simplify(size) for size in recogniser.shapes.shape(source)[:-1]]
    unknowns = [unknown for size in lead for unknown in size.unknowns]
    if shape is None or not unknowns:
        hidden = recogniser.shapes.shape(source)[-1].factor
        return ((1, False), (1, True), (hidden, False))
    return tuple((size.factor, unknowns[-1] in size.unknowns) for size in map(dims.simplify, shape))


def _experts(candidate: Routing, parts: list[Contribution]) -> tuple[Expert | None, ...]:
    """One for each id that the router may choose; None where the graph holds none."""
    if not isinstance(parts[0].selection, Picks):
        return tuple(parts[0].expert.of(number) for number in range(candidate.num_experts))
    found = {part.selection.expert: part.expert for part in parts}
    return tuple(found.get(number) for number in range(candidate.num_experts))


def _common(parts: list[Contribution], at: ir.Node) -> Contribution:
    """The first of `parts`, which stands for all in what they read."""
    first = parts[0]
    if any(part.source is not first.source for part in parts):
        raise NotFusable("the experts do not all read the same tokens", at)
    if any(
        (part.weights.weights, part.weights.function) != (first.weights.weights, first.weights.function) for part in parts
    ):
        raise NotFusable("the experts do not all use the same routing weights", at)
    if len(parts) > 1 and not all(isinstance(part.selection, Picks) for part in parts):
        raise NotFusable("experts are added that were computed in different ways", at)
    return first


def tokens_like(
    axes: Axes, source: ir.Value, recogniser: Recogniser, order: dict[ir.Node, int], at: ir.Node
) -> ir.Value | None:
    """The tokens `source`, as a value that exists before `at` and has exactly the sizes of `axes`."""
    dims = recogniser.shapes.dims
    wanted = sizes(axes)
    for value in recogniser.token_views[source]:
        shape = recogniser.shapes.shape(value)
        if len(shape) == len(wanted) and all(map(dims.same, shape, wanted)) and _is_before(value, at, order):
            return value
    return None


def _is_before(value: ir.Value, node: ir.Node, order: dict[ir.Node, int]) -> bool:
    maker = value.producer()
    return maker is None or order[maker] < order[node]


def _check_alike(experts: list[Expert], at: ir.Node) -> None:
    """One node describes all experts at once: same sizes, types, layout and activation."""
    kinds = {(*map(_description, (expert.gate, expert.up, expert.down)), expert.activation) for expert in experts}
    if len(kinds) != 1:
        raise NotFusable("the experts differ in size, type, layout, biases or activation", at)


def check_expert(expert: Expert, at: ir.Node) -> None:
    linears = [linear for linear in (expert.gate, expert.up, expert.down) if linear is not None]
    for tensor in (tensor for linear in linears for tensor in (linear.matrix.tensor, linear.bias)):
        if tensor is not None and tensor.dtype not in WEIGHT_TYPES:
            raise NotFusable(f"weights of type {tensor.dtype.name} are not supported (float, float16, bfloat16 are)", at)
    _check_layout(expert, at)
    if expert.down.bias is not None and expert.down.bias.stride != 1:
        raise NotFusable("the biases of the down matrices are not stored one element after the other", at)
    width = expert.gate.matrix.inputs, expert.gate.matrix.outputs
    if expert.up is not None and (expert.up.matrix.inputs, expert.up.matrix.outputs) != width:
        raise NotFusable("the gate and up matrices differ in size", at)
    if expert.up is not None and _storage(expert.up) != _storage(expert.gate):
        raise NotFusable("the gate and up matrices differ in type or layout", at)
    if (expert.down.matrix.outputs, expert.down.matrix.inputs) != width:
        raise NotFusable("the down matrix does not lead back from the experts' width to the tokens' width", at)


def _check_layout(expert: Expert, at: ir.Node) -> None:
    """What the operator takes: rows or columns without gaps, or gate and up in alternating columns, gate first."""
    gate, up = expert.gate.matrix, expert.up and expert.up.matrix
    alternating = up is not None and up.tensor is gate.tensor and up.offset == gate.offset + 1 and up.strides == gate.strides
    for matrix in filter(None, (gate, up, expert.down.matrix)):
        if 1 not in matrix.strides and not (matrix.strides[1] == 2 and alternating and matrix is not expert.down.matrix):
            raise NotFusable(f"a matrix is stored with strides {matrix.strides}, which no kernel reads", at)


def _storage(linear: Linear) -> tuple:
    return linear.matrix.dtype, linear.matrix.strides


def _description(linear: Linear | None) -> tuple | None:
    if linear is None:
        return None
    matrix = linear.matrix
    bias = None if linear.bias is None else (linear.bias.dtype, linear.bias.stride)
    return matrix.inputs, matrix.outputs, matrix.strides, matrix.dtype, bias


def check_private(
    recogniser: Recogniser,
    nodes: Iterable[ir.Node],
    output: ir.Value,
    private: Callable[[Recogniser, ir.Value], bool] | None = None,
) -> None:
    """Nothing in between may be wanted by anybody else: it would be computed twice. `private` says what is in between."""
    private = private or _belongs_inside
    inner = set(nodes)
    for node in nodes:
        for value in node.outputs:
            if value is output or not private(recogniser, value):
                continue
            if value.is_graph_output():
                raise NotFusable(f"{value.name!r} inside the layer is an output of the model", node)
            for user in value.consumers():
                if user not in inner:
                    raise NotFusable(f"{value.name!r} inside the layer is also used by {user.op_type} {user.name!r}", node)


def _belongs_inside(recogniser: Recogniser, value: ir.Value) -> bool:
    meaning = recogniser.meaning(value)
    return meaning is not None and not (isinstance(meaning, Rows) and isinstance(meaning.selection, Every))


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
