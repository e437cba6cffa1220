"""Shapes along the residual stream, worked out from the beginning of the graph to its end."""

from __future__ import annotations

import onnx_ir as ir

from .constants import attribute, initializer_tensor, is_standard, scalar, small_constant
from .dims import INFERRED, Dim
from .domain import DOMAIN
from .shapes import Shape, Shapes

_NORMS = frozenset({"SimplifiedLayerNormalization", "RMSNormalization", "LayerNormalization"})
_SKIP_NORM = "SkipSimplifiedLayerNormalization"


def follow_residuals(graph: ir.Graph, shapes: Shapes) -> None:
    """Tells `shapes` the shapes of embeddings, of norms, of sums of two equal shapes, of parts and of what fused
    nodes compute.

    `Shapes` works backwards by recursion and does not follow a sum of two computed values; in the graph's order every
    operand is known when its sum is met.
    """
    for node in graph:
        if node.op_type == "Split" and is_standard(node):
            _agree_on_parts(node, shapes)
        elif node.op_type == _SKIP_NORM and node.domain == "com.microsoft":
            _agree_on_sum(node, shapes)
        elif node.outputs and (shape := _shape(node, shapes)) is not None:
            shapes.agree(node.outputs[0], shape)


def same_shape(left: Shape | None, right: Shape | None, shapes: Shapes) -> bool:
    """Whether both are known to be the same."""
    if left is None or right is None or len(left) != len(right):
        return False
    return all(shapes.dims.same(a, b) for a, b in zip(left, right, strict=True))


def _shape(node: ir.Node, shapes: Shapes) -> Shape | None:
    if node.domain == DOMAIN and node.op_type == "MoE":
        return shapes.shape(node.inputs[0])
    if node.domain == DOMAIN and node.op_type == "GroupQueryAttention":
        return _attended(node, shapes)
    if not is_standard(node):
        return None
    if node.op_type in _NORMS or (node.op_type == "Pow" and scalar(node.inputs[1]) is not None):
        return shapes.shape(node.inputs[0])
    if node.op_type == "Gather" and attribute(node, "axis", 0) == 0:
        return _embedding(node, shapes)
    if node.op_type == "Add":
        return _sum(node, shapes)
    if node.op_type == "Reshape":
        return _reshaped(node, shapes)
    return None


def _sum(node: ir.Node, shapes: Shapes) -> Shape | None:
    left, right = (shapes.shape(operand) for operand in node.inputs)
    if same_shape(left, right, shapes):
        return left
    if not left or not right or shapes.shape(node.outputs[0]) is None:
        return None
    # Where one of them is wider than 1, the sum is as wide, whatever the other dimensions are.
    width = next((shape[-1] for shape in (left, right) if (shape[-1].constant or 0) > 1), None)
    return None if width is None else (*shapes.shape(node.outputs[0])[:-1], width)


def _reshaped(node: ir.Node, shapes: Shapes) -> Shape | None:
    """The dimensions that are named, where the one that is left open cannot be worked out."""
    target = shapes.integers(node.inputs[1])
    if target is None or target.is_scalar or Dim(0) in target.items:
        return None
    known = shapes.shape(node.inputs[0])
    if known is not None and (found := shapes.reshaped(known, target.items)) is not None:
        return found
    return tuple(
        shapes.dims.unknown((node.outputs[0], axis)) if dim == INFERRED else dim for axis, dim in enumerate(target.items)
    )


def _embedding(node: ir.Node, shapes: Shapes) -> Shape | None:
    table, indices = initializer_tensor(node.inputs[0]), shapes.shape(node.inputs[1])
    if table is None or indices is None:
        return None
    return (*indices, *(Dim(int(size)) for size in table.shape[1:]))


def _agree_on_parts(node: ir.Node, shapes: Shapes) -> None:
    """The outputs of a Split into parts of constant sizes."""
    whole = shapes.shape(node.inputs[0])
    sizes = attribute(node, "split", None)
    if sizes is None and len(node.inputs) > 1:
        sizes = small_constant(node.inputs[1])
    if not whole or sizes is None or len(sizes) != len(node.outputs):
        return
    axis = attribute(node, "axis", 0) % len(whole)
    for value, size in zip(node.outputs, sizes, strict=True):
        shapes.agree(value, (*whole[:axis], Dim(int(size)), *whole[axis + 1 :]))


def _agree_on_sum(node: ir.Node, shapes: Shapes) -> None:
    """The norm, and the sum that it is of, are shaped as what is added."""
    shape = shapes.shape(node.inputs[0])
    for value in (node.outputs[0], *node.outputs[3:]):
        if shape is not None:
            shapes.agree(value, shape)


def _attended(node: ir.Node, shapes: Shapes) -> Shape | None:
    """(batch, new tokens, width), the width unknown."""
    query = shapes.shape(node.inputs[0])
    if query is None or len(query) not in (3, 4):
        return None
    return query[0], query[-2], shapes.dims.unknown((node.outputs[0], 2))
