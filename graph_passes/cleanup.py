"""Removes what nothing uses."""

from __future__ import annotations

import onnx_ir as ir


def remove_unused(graph: ir.Graph) -> int:
    """Removes the nodes without a used output, and then the initializers without a user. Returns how many nodes went.

    One pass from the end to the beginning: a node that loses its last user is met later.
    """
    removed = 0
    for node in reversed(graph):
        if any(output.is_graph_output() or output.uses() for output in node.outputs):
            continue
        graph.remove(node, safe=True)
        removed += 1
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]
    return removed
