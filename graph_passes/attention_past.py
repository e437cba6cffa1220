"""How long the past is: not what the past cache says, but what the attention mask does.

A model whose caches grow reads the length of its past from their shape. With one buffer of the largest length, bound as past
and present, that shape says nothing; the width of the attention mask still is the number of all tokens. So what is left of
a model that reads the caches' length (positions, masks that stay) gets it as that width without the new tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .attention_angles import NewNodes
from .attention_node import is_attention_node
from .constants import attribute, is_standard, scalar
from .polynomials import Polynomial, parse
from .router_expressions import said

_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
_LENGTH_AXIS = 2


def count_past_by_mask(graph: ir.Graph) -> str | None:
    """Changes `graph`, in which attention is fused, so that one buffer can be bound as past and present of every layer.

    Returns:
        None if that is possible now, otherwise why it is not.
    """
    layers = [node for node in graph if is_attention_node(node)]
    pasts = dict.fromkeys(value for node in layers for value in node.inputs[3:5] if value is not None)
    masks = {node.inputs[17] if len(node.inputs) > 17 else None for node in layers}
    if not pasts:
        return "no attention with caches was fused"
    if None in masks or len(masks) != 1:
        return "the number of tokens is not known from an attention mask"
    (mask,) = masks
    tokens = _new_tokens(graph, layers, mask)
    if tokens is None:
        return "no input is known to have as many columns as there are new tokens"
    obstacle = _first_obstacle(pasts, [value for node in layers for value in node.outputs[1:3]])
    if obstacle is not None:
        return obstacle
    shapes = [node for value in pasts for node in value.consumers() if node.op_type == "Shape" and _covers_length(node)]
    if shapes:
        _replace(graph, shapes, mask, tokens)
    return None


def _new_tokens(graph: ir.Graph, layers: list[ir.Node], mask: ir.Value) -> ir.Value | None:
    """An input (B, S) of the model: its second size is what the mask has more than the past, or a present cache."""
    past = _length(layers[0].inputs[3])
    new = {_declared(mask, 1) - past} | {_length(node.outputs[1]) - _length(node.inputs[3]) for node in layers[:1]}
    for value in graph.inputs:
        if value is not mask and value.dtype in _INTEGERS and value.shape is not None and len(value.shape) == 2:
            if _declared(value, 1) in new:
                return value
    return None


def _length(cache: ir.Value) -> Polynomial:
    return _declared(cache, _LENGTH_AXIS)


def _declared(value: ir.Value, axis: int) -> Polynomial:
    size = value.shape[axis] if value.shape is not None and len(value.shape) > axis else None
    text = str(size) if isinstance(size, int) else None if size is None else size.value
    return parse(text or f"{value.name}#{axis}")


def _first_obstacle(pasts: Iterable[ir.Value], presents: Iterable[ir.Value]) -> str | None:
    """Something else that reads what lies in a cache, or the length of a present one."""
    for value in pasts:
        for node in value.consumers():
            if not (is_attention_node(node) or node.op_type == "Shape"):
                return f"{said(node)} reads the past cache {value.name!r}"
            if node.op_type == "Shape" and any(found.is_graph_output() for found in _lengths(node)):
                return f"{said(node)} gives the length of the past to the caller of the model"
    for value in presents:
        for node in value.consumers():
            return f"{said(node)} reads the present cache {value.name!r}"
    return None


def _lengths(shape: ir.Node) -> list[ir.Value]:
    """What `shape` says, and what is taken from that."""
    return [shape.outputs[0], *(node.outputs[0] for node in shape.outputs[0].consumers() if _is_gather(node))]


def _covers_length(shape: ir.Node) -> bool:
    return _LENGTH_AXIS in range(4)[attribute(shape, "start", 0) : attribute(shape, "end", None)]


def _replace(graph: ir.Graph, shapes: list[ir.Node], mask: ir.Value, tokens: ir.Value) -> None:
    """Lets what `shapes` say of the length come from `mask` and `tokens`."""
    new, made = NewNodes(graph), []

    def put(*nodes: ir.Node) -> ir.Value:
        made.extend(node for node in nodes if node not in made)
        return nodes[-1].outputs[0]

    def sizes(value: ir.Value, *axes: int) -> ir.Value:
        index = new.integers(*axes)
        whole = new.node("Shape", f"{value.name}.shape", [value], like=index.outputs[0])
        name = f"{value.name}.sizes." + "_".join(map(str, axes))
        return put(
            whole, index, new.node("Gather", name, [whole.outputs[0], index.outputs[0]], like=index.outputs[0], axis=0)
        )

    total, count = sizes(mask, 1), sizes(tokens, 1)
    past = put(new.node("Sub", "ort_hina.past_length", [total, count], like=total))
    scalar_shape = new.integers()
    single = put(
        scalar_shape, new.node("Reshape", "ort_hina.past_length.scalar", [past, scalar_shape.outputs[0]], like=past)
    )
    for shape in shapes:
        _redirect(shape, past, single, sizes, put, new)
    graph.insert_before(graph[0], [node for node in made if node.graph is None])


def _redirect(shape: ir.Node, past: ir.Value, single: ir.Value, sizes, put, new: NewNodes) -> None:
    cache, start = shape.inputs[0], attribute(shape, "start", 0)
    if (start, attribute(shape, "end", None)) == (_LENGTH_AXIS, _LENGTH_AXIS + 1):
        shape.outputs[0].replace_all_uses_with(past)
        return
    for use in list(shape.outputs[0].uses()):
        place = scalar(use.node.inputs[1]) if _is_gather(use.node) else None
        if place is not None and start == 0 and use.node.inputs[1].producer() is not None:
            if place % 4 == _LENGTH_AXIS and _is_single(use.node.inputs[1]):
                use.node.outputs[0].replace_all_uses_with(single)
                continue
            if place % 4 != _LENGTH_AXIS:
                continue
        axes = range(4)[start : attribute(shape, "end", None)]
        parts = [sizes(cache, *range(axes.start, _LENGTH_AXIS)), past, sizes(cache, *range(_LENGTH_AXIS + 1, axes.stop))]
        whole = put(new.node("Concat", f"{cache.name}.shape_by_mask.{axes.start}_{axes.stop}", parts, like=past, axis=0))
        use.node.replace_input_with(use.idx, whole)


def _is_gather(node: ir.Node) -> bool:
    return node.op_type == "Gather" and is_standard(node) and attribute(node, "axis", 0) == 0


def _is_single(index: ir.Value) -> bool:
    content = index.producer().attributes.get("value") if index.producer() is not None else None
    return content is not None and len(content.value.shape) == 0
