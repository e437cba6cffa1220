"""Removes casts to the type that a value has already, as PyTorch's ``.to(dtype)`` leaves them in a float32 model."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, is_standard
from .element_types import ElementTypes


def remove_idle_casts(graph: ir.Graph) -> int:
    """Lets the users of each such cast read what is cast. Returns how many casts went; those of outputs of the graph, which
    keep their names, stay."""
    types = ElementTypes(graph)
    idle = [
        node
        for node in graph
        if node.op_type == "Cast"
        and is_standard(node)
        and types.of(node.inputs[0]) == attribute(node, "to", 0)
        and not node.outputs[0].is_graph_output()
    ]
    for node in idle:
        node.outputs[0].replace_all_uses_with(node.inputs[0])
        graph.remove(node, safe=True)
    return len(idle)
