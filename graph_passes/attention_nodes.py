"""Fusion: attention that the exporter wrote as one node already, of com.microsoft or of ONNX itself."""

from __future__ import annotations

import onnx_ir as ir

from . import contrib_attention
from .attention_layer import AttentionLayer, RefusedAttention
from .constants import is_standard
from .contrib_attention import WINDOWS_AS_OURS, group_query_attention, multi_head_attention
from .meanings import Refusal
from .shapes import Shapes
from .slices import where_of
from .standard_attention import StandardAttention


def find(
    graph: ir.Graph, shapes: Shapes, onnxruntime: tuple[int, int] = WINDOWS_AS_OURS
) -> list[AttentionLayer | RefusedAttention]:
    """Every such node of `graph`, in order. The graph is not changed.

    Args:
        shapes: what is known about the graph's shapes.
        onnxruntime: the version whose operators the graph is written for. Windows of before 1.24 are refused.
    """
    standard = StandardAttention(graph, shapes)
    found = []
    for node in graph:
        try:
            if node.op_type == "Attention" and is_standard(node):
                found.append(standard.read(node))
            elif node.domain == contrib_attention.DOMAIN and node.op_type == "GroupQueryAttention":
                found.append(group_query_attention(node, shapes, onnxruntime))
            elif node.domain == contrib_attention.DOMAIN and node.op_type == "MultiHeadAttention":
                found.append(multi_head_attention(node, shapes))
        except Refusal as refusal:
            found.append(RefusedAttention(where_of(node), f"{refusal} ({node.op_type} {node.name!r})"))
    return found
