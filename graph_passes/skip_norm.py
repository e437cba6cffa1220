"""Fusion: the sum of a residual connection and the norm behind it become one ``SkipSimplifiedLayerNormalization``.

ONNX Runtime's kernel adds in float32 and takes the norm of that sum; its output 3 is the sum, rounded, for those who
need it besides. ONNX Runtime itself fuses the two for other execution providers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .constants import attribute, initializer_tensor, is_standard
from .element_types import ElementTypes
from .residual_shapes import same_shape
from .rms_norm import OPERATOR, TYPES
from .shapes import Shapes

DOMAIN = "com.microsoft"
OPSET = 1

# ONNX Runtime's own, and that of ONNX since opset 23: the same function.
_NORMS = (OPERATOR, "RMSNormalization")


@dataclass(frozen=True)
class SkipNorm:
    add: ir.Node
    norm: ir.Node
    width: int
    dtype: ir.DataType

    @property
    def weight(self) -> ir.Value:
        return self.norm.inputs[1]

    @property
    def epsilon(self) -> float:
        return attribute(self.norm, "epsilon", 1e-5)

    @property
    def pattern(self) -> tuple:
        """Those of one pattern compute the same of their inputs."""
        return self.norm.op_type, self.dtype, self.width, self.epsilon


def find(graph: ir.Graph, shapes: Shapes, types: ElementTypes) -> list[SkipNorm]:
    """The pairs of `graph`, in order, no sum in two of them. The graph is not changed."""
    found: dict[ir.Node, SkipNorm] = {}
    for node in graph:
        if node.op_type in _NORMS and is_standard(node) and (pair := _pair(node, shapes, types)) is not None:
            found.setdefault(pair.add, pair)
    return list(found.values())


def _pair(norm: ir.Node, shapes: Shapes, types: ElementTypes) -> SkipNorm | None:
    add, weight = norm.inputs[0].producer(), initializer_tensor(norm.inputs[1])
    if add is None or add.op_type != "Add" or not is_standard(add) or weight is None or len(weight.shape) != 1:
        return None
    if len(norm.outputs) > 1 or attribute(norm, "stash_type", 1) != 1:
        return None
    # The kernel adds what has one shape, of rank 2 or 3.
    left, right = (shapes.shape(operand) for operand in add.inputs)
    if not same_shape(left, right, shapes) or len(left) not in (2, 3):
        return None
    width = shapes.dims.simplify(left[-1]).constant
    if attribute(norm, "axis", -1) not in (-1, len(left) - 1) or width != weight.shape[0]:
        return None
    kind = types.of(add.outputs[0])
    return SkipNorm(add, norm, width, kind) if kind in TYPES and kind == weight.dtype else None


def make_node(pair: SkipNorm) -> ir.Node:
    """The node for `pair`. Nothing is added to a graph yet."""
    total, output = pair.add.outputs[0], pair.norm.outputs[0]
    made = [_like(output, pair.dtype), ir.Value(name=""), ir.Value(name=""), _like(total, pair.dtype)]
    alone = len(total.uses()) == 1 and not total.is_graph_output()
    return ir.Node(
        DOMAIN,
        f"Skip{OPERATOR}",
        [*pair.add.inputs, pair.weight],
        ir.convenience.convert_attributes({"epsilon": pair.epsilon}),
        outputs=made[:1] if alone else made,
        name=pair.norm.name and f"{pair.norm.name}/Skip",
    )


def _like(value: ir.Value, kind: ir.DataType | None) -> ir.Value:
    return ir.Value(name=value.name, type=value.type or ir.TensorType(kind), shape=value.shape)


def put_node(graph: ir.Graph, pair: SkipNorm, node: ir.Node) -> None:
    """Lets `node` compute the sum and its norm, where the sum was."""
    graph.insert_before(pair.add, node)
    olds = [pair.norm.outputs[0], pair.add.outputs[0]]
    news = [node.outputs[0], *node.outputs[3:]]
    names = [value.name for value in olds]
    for old, new in zip(olds, news, strict=False):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(pair.norm, safe=True)
    graph.remove(pair.add, safe=True)
    for old, new, name in zip(olds, news, names, strict=False):
        old.name, new.name = None, name
    graph.opset_imports.setdefault(DOMAIN, OPSET)
