"""Fusion: feed-forward networks that every token goes through: shared experts (with their sigmoid gate, if they have one) and
the dense layers of a mixture-of-experts model. Each becomes a MoE with one always-on expert."""

from __future__ import annotations

import onnx_ir as ir

from .axes import sizes
from .constants import is_standard
from .meanings import Every, Expert, Gated, PartialSum, Rows, Tokens, Vector
from .moe_layer import MoELayer, Refused
from .recogniser import Recogniser
from .routed_moe import NotFusable, check_expert, check_private, tokens_like
from .slices import inner_nodes, where_of

# They hand the rows on: the network ends before them.
_VIEWS = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Tile", "Transpose"})


def find(graph: ir.Graph, recogniser: Recogniser) -> list[MoELayer | Refused]:
    """Every such network of `graph`, in order: understood as a whole, or refused with the reason."""
    order = {node: place for place, node in enumerate(graph)}
    outputs = [(value, rows) for value, rows in recogniser.values(Rows) if _is_network(value, rows)]
    outputs = [(value, rows) for value, rows in outputs if not _goes_on(value, recogniser)]
    outputs.sort(key=lambda output: order[output[0].producer()])
    return [_checked(value, rows, recogniser, order) for value, rows in outputs]


def _checked(value: ir.Value, rows: Rows, recogniser: Recogniser, order: dict[ir.Node, int]) -> MoELayer | Refused:
    try:
        return _layer(value, rows, recogniser, order)
    except NotFusable as refused:
        node = value.producer()
        return Refused(where_of(node), f"{refused} ({node.op_type} {node.name!r})", node.name or node.op_type, 1, None, None)


def _is_network(value: ir.Value, rows: Rows) -> bool:
    is_output = isinstance(rows.selection, Every) and isinstance(rows.form, Expert | Gated)
    return is_output and rows.routing is None and value.producer().op_type not in _VIEWS


def _goes_on(value: ir.Value, recogniser: Recogniser) -> bool:
    """Whether a bias or the gate follows, so that a later value is the network's output."""
    (first, *others) = value.consumers() or (None,)
    if first is None or others:
        return False
    later = recogniser.meaning(first.outputs[0])
    return isinstance(later, Rows) and _is_network(first.outputs[0], later)


def _layer(network: ir.Value, rows: Rows, recogniser: Recogniser, order: dict[ir.Node, int]) -> MoELayer:
    output, addend = _with_addend(network, rows, recogniser)
    at = output.producer()
    expert = rows.form.expert if isinstance(rows.form, Gated) else rows.form
    x = tokens_like(rows.axes, rows.source, recogniser, order, at)
    nodes, onlooked = inner_nodes(output, {rows.source, addend}, order)
    check_expert(expert, at)
    check_private(recogniser, nodes, output, private=_is_inside)
    if x is None or onlooked:
        raise NotFusable("its output is not proved to have the shape of the tokens", at)
    return MoELayer(
        where_of(network.producer()),
        x,
        None,
        None,
        output,
        1,
        (expert,),
        nodes,
        sigmoid_gate=_gate(rows.form),
        pattern="every token",
        source=rows.source,
        ranks=(len(recogniser.shapes.shape(rows.source)), len(rows.axes)),
        dtypes=(recogniser.dtype(rows.source), None),
        addend=addend,
    )


def _with_addend(network: ir.Value, rows: Rows, recogniser: Recogniser) -> tuple[ir.Value, ir.Value | None]:
    """What the routed experts answer is added to the output of a shared one: that sum, and the other operand."""
    uses = network.consumers()
    if len(uses) != 1 or network.is_graph_output() or uses[0].op_type != "Add" or not is_standard(uses[0]):
        return network, None
    others = [operand for operand in uses[0].inputs if operand is not network]
    if len(others) != 1 or not isinstance(recogniser.meaning(others[0]), PartialSum):
        return network, None
    shape = recogniser.shapes.shape(others[0])
    dims = recogniser.shapes.dims
    alike = len(shape) == len(rows.axes) and all(map(dims.same, shape, sizes(rows.axes)))
    if not alike or recogniser.meaning(others[0]).dtype != rows.dtype:
        return network, None
    return uses[0].outputs[0], others[0]


def _gate(form: Expert | Gated) -> Vector | None:
    if not isinstance(form, Gated):
        return None
    matrix = form.gate.matrix
    return Vector(matrix.tensor, matrix.inputs, matrix.strides[0], matrix.offset)


def _is_inside(recogniser: Recogniser, value: ir.Value) -> bool:
    meaning = recogniser.meaning(value)
    return isinstance(meaning, Rows) and not isinstance(meaning.form, Tokens)
