"""The fusions, in the order in which they are tried."""

from __future__ import annotations

import onnx_ir as ir

from . import looped_moe
from .moe_layer import MoELayer, Refused
from .moe_node import is_moe_node

# Each module finds the layers of one way to write a mixture of experts.
FUSIONS = (looped_moe,)


def find_layers(graph: ir.Graph) -> list[MoELayer | Refused]:
    """The MoE layers of `graph`, in order: understood by one of the fusions, or refused with the reason."""
    return [layer for fusion in FUSIONS for layer in fusion.find(graph)]


def hints(graph: ir.Graph) -> list[str]:
    """What may be worth knowing about a graph in which no layer was found."""
    fused = sum(is_moe_node(node) for node in graph)
    if fused:
        return [f"the model holds {fused} mixture-of-experts layers that are fused already"]
    choices = sum(node.op_type == "TopK" for node in graph)
    if choices:
        return [f"the model has {choices} TopK nodes: if they route to experts, it is written in a way that is not known here"]
    return []
