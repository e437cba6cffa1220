"""The fusions, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from . import always_on, attention_match, attention_nodes, contrib_moe, routed_moe
from .attention_layer import AttentionLayer, RefusedAttention
from .contrib_attention import WINDOWS_AS_OURS
from .meanings import Refusal
from .moe_layer import MoELayer, Refused
from .moe_node import is_moe_node
from .router_match import RouterMatch, match_router
from .shapes import Shapes


@dataclass
class Found:
    """What a graph holds. Nothing in it is changed yet."""

    routed: list[MoELayer | Refused]
    """Layers with a router, in order: understood by one of the fusions, or refused with the reason."""
    always_on: list[MoELayer | Refused] = field(default_factory=list)
    """Shared experts and dense layers, in order."""
    routers: dict[tuple[ir.Value, ir.Value], RouterMatch | str] = field(default_factory=dict)
    """By the ids and weights of a layer: its router, or why that stays as it is."""

    attention: list[AttentionLayer | RefusedAttention] = field(default_factory=list)
    """In order, of a graph with layers that have a router."""
    shapes: Shapes = field(default_factory=Shapes)
    """Of the graph as it was found."""

    def router_of(self, layer: MoELayer) -> RouterMatch | str | None:
        """None: the layer's router comes with it."""
        return self.routers.get((layer.ids, layer.weights))


def find(graph: ir.Graph, onnxruntime: tuple[int, int] = WINDOWS_AS_OURS) -> Found:
    """What `graph` holds.

    Args:
        onnxruntime: the version of ONNX Runtime whose operators the graph is written for.
    """
    recogniser = routed_moe.walked(list(graph))
    routed = [*routed_moe.find(graph, recogniser), *contrib_moe.find(graph, recogniser.shapes)]
    # A graph without experts that are chosen is not a mixture of experts, and none of our business.
    is_mixture = any(isinstance(layer, MoELayer) for layer in routed)
    dense = always_on.find(graph, recogniser) if is_mixture else []
    attention = _attention(graph, recogniser.shapes, onnxruntime) if is_mixture else []
    routers = {
        (layer.ids, layer.weights): _router(layer, recogniser.shapes)
        for layer in routed
        if isinstance(layer, MoELayer) and layer.ids is not None
    }
    return Found(routed, dense, routers, attention, recogniser.shapes)


def _attention(graph: ir.Graph, shapes: Shapes, onnxruntime: tuple[int, int]) -> list[AttentionLayer | RefusedAttention]:
    """As many nodes, then as one."""
    return [*attention_match.find(graph, shapes), *attention_nodes.find(graph, shapes, onnxruntime)]


def _router(layer: MoELayer, shapes: Shapes) -> RouterMatch | str:
    try:
        return match_router(shapes, layer.ids, layer.weights)
    except Refusal as refusal:
        return str(refusal)


def hints(model: ir.Model) -> list[str]:
    """What may be worth knowing about a model in which no layer was found."""
    graph = model.graph
    fused = sum(is_moe_node(node) for node in graph)
    if fused:
        return [f"the model holds {fused} mixture-of-experts layers that are fused already"]
    found = []
    choices = sum(node.op_type == "TopK" for node in graph)
    if choices:
        found.append(
            f"the model has {choices} TopK nodes: if they route to experts, it is written in a way that is not known here"
        )
    inside = sum(node.op_type == "TopK" for node in graph.all_nodes()) - choices
    if inside:
        found.append(f"{inside} TopK nodes lie in branches or loops (If, Loop, Scan), which are not looked into")
    if model.functions:
        names = ", ".join(sorted({name for _, name, _ in model.functions})[:3])
        found.append(
            f"the model calls functions of its own ({names}, ...), which are not looked into: onnx.inliner inlines them"
        )
    return found
