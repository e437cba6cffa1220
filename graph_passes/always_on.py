"""Fusion: feed-forward networks that every token goes through: shared experts (with their sigmoid gate, if they have one) and
the dense layers of a mixture-of-experts model. Each becomes a MoE with one always-on expert."""

from __future__ import annotations

import onnx_ir as ir

from .meanings import Every, Expert, Gated, Rows, Tokens, Vector
from .moe_layer import MoELayer
from .recogniser import Recogniser
from .routed_moe import NotFusable, check_expert, check_private, tokens_like
from .slices import inner_nodes, where_of

# They hand the rows on: the network ends before them.
_VIEWS = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Tile", "Transpose"})


def find(graph: ir.Graph, recogniser: Recogniser) -> list[MoELayer]:
    """Every such network of `graph` that is understood as a whole, in order."""
    order = {node: place for place, node in enumerate(graph)}
    outputs = [(value, rows) for value, rows in recogniser.values(Rows) if _is_network(value, rows)]
    outputs = [(value, rows) for value, rows in outputs if not _goes_on(value, recogniser)]
    layers = [_layer(value, rows, recogniser, order) for value, rows in outputs]
    return sorted((layer for layer in layers if layer is not None), key=lambda layer: order[layer.output.producer()])


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


def _layer(output: ir.Value, rows: Rows, recogniser: Recogniser, order: dict[ir.Node, int]) -> MoELayer | None:
    at = output.producer()
    expert = rows.form.expert if isinstance(rows.form, Gated) else rows.form
    x = tokens_like(rows.axes, rows.source, recogniser, order, at)
    nodes, onlooked = inner_nodes(output, {rows.source}, order)
    try:
        check_expert(expert, at)
        check_private(recogniser, nodes, output, private=_is_inside)
    except NotFusable:
        return None
    if x is None or onlooked:
        return None
    return MoELayer(
        where_of(at),
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
    )


def _gate(form: Expert | Gated) -> Vector | None:
    if not isinstance(form, Gated):
        return None
    matrix = form.gate.matrix
    return Vector(matrix.tensor, matrix.inputs, matrix.strides[0], matrix.offset)


def _is_inside(recogniser: Recogniser, value: ir.Value) -> bool:
    meaning = recogniser.meaning(value)
    return isinstance(meaning, Rows) and not isinstance(meaning.form, Tokens)
