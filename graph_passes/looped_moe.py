"""Fusion: a loop over all experts that the exporter unrolled (Optimum's Qwen3-MoE, and what is spelled like it).

For each expert the graph finds its tokens (NonZero of a mask), gathers their rows, runs the expert, weighs its output
and scatters it back; the outputs of all experts are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from . import combine, dispatch, expert_ffn, routing, views
from .meanings import Contribution, Expert, Linear, PartialSum, Refusal, Routing
from .moe_layer import MoELayer, Refused
from .recogniser import Recogniser
from .slices import inner_nodes, where_of

RULE_TABLES = (routing.RULES, dispatch.RULES, expert_ffn.RULES, combine.RULES, views.RULES)
WEIGHT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def find(graph: ir.Graph) -> list[MoELayer | Refused]:
    """Every unrolled MoE layer of `graph`, in order: understood, or refused with its reason. The graph is not changed."""
    order = {node: place for place, node in enumerate(graph)}
    recogniser = Recogniser(RULE_TABLES)
    recogniser.walk(order)
    return [_check(candidate, recogniser, order) for candidate in recogniser.routings if _is_dispatched(candidate)]


def _is_dispatched(candidate: Routing) -> bool:
    """A TopK alone is not a router (sampling has one too): somebody must compare its ids with expert numbers."""
    return candidate.dispatch is not None


def _check(candidate: Routing, recogniser: Recogniser, order: dict[ir.Node, int]) -> MoELayer | Refused:
    try:
        output, total = _complete_sum(candidate)
        return _layer(candidate, output, total, recogniser, order)
    except _Refused as refused:
        return Refused(
            where_of(candidate.dispatch),
            str(refused),
            refused.node.name or refused.node.op_type,
            len(candidate.experts_seen),
            candidate.num_experts,
            candidate.k,
        )


class _Refused(Exception):
    def __init__(self, reason: str, node: ir.Node) -> None:
        super().__init__(reason)
        self.node = node


def _complete_sum(candidate: Routing) -> tuple[ir.Value, PartialSum]:
    """The first value that is the sum over every expert once."""
    count = candidate.num_experts
    if count is None:
        raise _obstacle(candidate, "nothing in the graph tells how many experts the router chooses from")
    if not candidate.experts_seen:
        raise _obstacle(candidate, "no expert's share of the tokens is taken from the router's choice")
    missing = sorted(set(range(count)) - candidate.experts_seen)
    if missing:
        raise _Refused(
            f"the router chooses from {count} experts, and the graph holds {count - len(missing)}: "
            f"missing {_numbers(missing)} (the export dropped experts that its example input did not reach)",
            candidate.dispatch,
        )
    largest = max((total.count for _, total in candidate.sums), default=0)
    if largest < count:
        raise _obstacle(candidate, "the experts are not summed")
    output, total = next((value, total) for value, total in candidate.sums if total.count == largest)
    summed = Counter(part.selection.expert for part in total.contributions())
    twice = sorted(expert for expert, times in summed.items() if times > 1)
    if twice:
        raise _Refused(f"experts {_numbers(twice)} are added more than once", output.producer())
    return output, total


def _obstacle(candidate: Routing, otherwise: str) -> _Refused:
    """The first thing on the way that was not understood, or else `otherwise`."""
    if not candidate.obstacles:
        return _Refused(otherwise, candidate.dispatch)
    node, reason = candidate.obstacles[0]
    return _Refused(f"{reason} ({node.op_type} {node.name!r})", node)


def _layer(
    candidate: Routing, output: ir.Value, total: PartialSum, recogniser: Recogniser, order: dict[ir.Node, int]
) -> MoELayer:
    parts = sorted(total.contributions(), key=lambda part: part.selection.expert)
    at = output.producer()
    x, weights = _common_inputs(parts, at)
    experts = tuple(part.expert for part in parts)
    _check_alike(experts, at)
    _check_expert(experts[0], at)
    if candidate.k > len(experts):
        raise _Refused(f"the router chooses {candidate.k} of {len(experts)} experts", candidate.node)
    _check_shape(total, x, recogniser, at)
    nodes, onlooked = inner_nodes(output, {x, candidate.ids, weights}, order)
    _check_private(candidate, nodes, output)
    # A rank that nothing tells is taken for that of tokens before they are flattened.
    ranked = tuple((value, recogniser.shapes.rank(value) or 3) for value in onlooked)
    return MoELayer(where_of(at), x, candidate.ids, weights, output, candidate.k, experts, nodes, ranked)


def _common_inputs(parts: list[Contribution], at: ir.Node) -> tuple[ir.Value, ir.Value]:
    sources, weights = {part.source for part in parts}, {part.weights for part in parts}
    if len(sources) != 1:
        raise _Refused("the experts do not all read the same tokens", at)
    if len(weights) != 1:
        raise _Refused("the experts do not all use the same routing weights", at)
    return sources.pop(), weights.pop()


def _check_alike(experts: tuple[Expert, ...], at: ir.Node) -> None:
    """One node describes all experts at once: same sizes, types, layout and activation."""
    kinds = {(*map(_description, (expert.gate, expert.up, expert.down)), expert.activation) for expert in experts}
    if len(kinds) != 1:
        raise _Refused("the experts differ in size, type, layout, biases or activation", at)


def _check_expert(expert: Expert, at: ir.Node) -> None:
    linears = [linear for linear in (expert.gate, expert.up, expert.down) if linear is not None]
    for tensor in (tensor for linear in linears for tensor in (linear.matrix.tensor, linear.bias)):
        if tensor is not None and tensor.dtype not in WEIGHT_TYPES:
            raise _Refused(f"weights of type {tensor.dtype.name} are not supported (float, float16, bfloat16 are)", at)
    width = expert.gate.matrix.inputs, expert.gate.matrix.outputs
    if expert.up is not None and (expert.up.matrix.inputs, expert.up.matrix.outputs) != width:
        raise _Refused("the gate and up matrices differ in size", at)
    if expert.up is not None and _storage(expert.up) != _storage(expert.gate):
        raise _Refused("the gate and up matrices differ in type or layout", at)
    if (expert.down.matrix.outputs, expert.down.matrix.inputs) != width:
        raise _Refused("the down matrix does not lead back from the experts' width to the tokens' width", at)


def _storage(linear: Linear) -> tuple:
    return linear.matrix.dtype, linear.matrix.strides


def _description(linear: Linear | None) -> tuple | None:
    if linear is None:
        return None
    matrix = linear.matrix
    bias = None if linear.bias is None else linear.bias.dtype
    return matrix.inputs, matrix.outputs, matrix.strides, matrix.dtype, bias


def _check_shape(total: PartialSum, x: ir.Value, recogniser: Recogniser, at: ir.Node) -> None:
    dims = recogniser.shapes.dims
    expected = recogniser.shapes.shape(x)
    found = tuple(axis.size for axis in total.axes)
    if len(found) != 2 or not dims.same(found[0], expected[0]) or not dims.same(found[1], expected[1]):
        raise _Refused(
            "the sum of experts is not proved to have the shape of the tokens (the graph carries too little shape "
            "information; onnx.shape_inference.infer_shapes_path may add it)",
            at,
        )


def _check_private(candidate: Routing, nodes: Iterable[ir.Node], output: ir.Value) -> None:
    """Nothing in between may be wanted by anybody else: it would vanish, or be computed twice."""
    inner = set(nodes)
    for node in inner:
        for value in node.outputs:
            if value is output or value not in candidate.values:
                continue
            if value.is_graph_output():
                raise _Refused(f"{value.name!r} inside the layer is an output of the model", node)
            for user in value.consumers():
                if user not in inner:
                    raise _Refused(f"{value.name!r} inside the layer is also used by {user.op_type} {user.name!r}", node)


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
