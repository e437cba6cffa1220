"""Removes the reshape of tokens before a router: the operators take tokens as (T, features) and as (B, S, features).

Exporters join batch and sequence before the router's matrix. With the nodes that compute the shape these are about five of
the fifteen nodes of a fused layer.
"""

from __future__ import annotations

import onnx_ir as ir

from .constants import is_standard
from .moe_node import is_moe_node
from .router_node import is_router_node
from .shapes import Shapes


def remove_router_reshapes(graph: ir.Graph, shapes: Shapes) -> int:
    """Lets the matrices of routers read tokens of rank 3. Returns how many do now."""
    routers = [node for node in graph if is_router_node(node) and _is_for_layers_alone(node)]
    products = [(router, product) for router in routers if (product := _product(router, shapes)) is not None]
    for router, product in products:
        product.replace_input_with(0, _tokens(product.inputs[0], shapes))
        for value in (product.outputs[0], *router.outputs):
            value.shape = None  # it had a rank less
    return len(products)


def _is_for_layers_alone(router: ir.Node) -> bool:
    """Whether ids and weights go to MoE nodes and nowhere else: these want no certain rank."""
    users = [use for value in router.outputs for use in value.uses()]
    return all(is_moe_node(use.node) and use.idx in (1, 2) for use in users) and not any(
        value.is_graph_output() for value in router.outputs
    )


def _product(router: ir.Node, shapes: Shapes) -> ir.Node | None:
    """The MatMul of joined tokens with the router's matrix, where only `router` uses it."""
    logits = router.inputs[0]
    node = logits.producer()
    if node is None or node.op_type != "MatMul" or not is_standard(node) or len(logits.uses()) != 1:
        return None
    if logits.is_graph_output() or shapes.rank(node.inputs[1]) != 2:
        return None
    return node if _tokens(node.inputs[0], shapes) is not None else None


def _tokens(rows: ir.Value, shapes: Shapes) -> ir.Value | None:
    """(B, S, features), of which `rows` (T, features) are a reshape."""
    found = None
    node = rows.producer()
    joined = shapes.shape(rows)
    while node is not None and node.op_type == "Reshape" and is_standard(node) and joined is not None and len(joined) == 2:
        shape = shapes.shape(node.inputs[0])
        if shape is not None and len(shape) == 3 and shapes.dims.same(shape[-1], joined[-1]):
            found = node.inputs[0]
        node = node.inputs[0].producer()
    return found
