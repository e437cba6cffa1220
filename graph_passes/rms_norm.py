"""Fusion: a root-mean-square norm that an exporter spelled out becomes one node ``SimplifiedLayerNormalization``.

    y = w · x / sqrt(mean(x²) + epsilon)          the mean over the last axis, x widened to float32

ONNX Runtime fuses the spelling of one exporter by itself, when it creates a session, and not that of others. Its kernel
computes in float32 whatever the type and rounds once; a float16 export rounds before the multiplication by w as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .constants import attribute, axes_of, initializer_tensor, is_standard, scalar
from .element_types import ElementTypes
from .shapes import Shapes
from .slices import inner_nodes

OPERATOR = "SimplifiedLayerNormalization"

# The types that the kernels of every supported version of ONNX Runtime have.
FLOAT, HALF = TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

Found = tuple[ir.Value, ir.Value, ir.Value]
"""A norm's input, weight and output, all of one type."""


@dataclass(frozen=True)
class RMSNorm:
    """A norm as the graph spells it. `output` is what the last of `nodes` computes."""

    x: ir.Value
    weight: ir.Value
    epsilon: float
    output: ir.Value
    nodes: tuple[ir.Node, ...]
    width: int
    dtype: ir.DataType
    """Of `x`, `weight` and `output`."""

    @property
    def pattern(self) -> tuple:
        """Norms of one pattern compute the same of their inputs."""
        return tuple(node.op_type for node in self.nodes), self.dtype, self.width, self.epsilon


def find(graph: ir.Graph, shapes: Shapes, types: ElementTypes) -> list[RMSNorm]:
    """The spelled-out norms of `graph`, in order. The graph is not changed."""
    recogniser = _Recogniser(shapes, types, {node: place for place, node in enumerate(graph)})
    means = [node for node in graph if node.op_type == "ReduceMean" and is_standard(node)]
    return [norm for mean in means if (norm := recogniser.norm(mean)) is not None]


def make_node(norm: RMSNorm) -> ir.Node:
    """The node for `norm`. Nothing is added to a graph yet."""
    output = ir.Value(name=norm.output.name, type=ir.TensorType(norm.dtype), shape=norm.output.shape)
    attributes = ir.convenience.convert_attributes({"axis": -1, "epsilon": norm.epsilon, "stash_type": 1})
    name = norm.nodes[-1].name
    return ir.Node("", OPERATOR, [norm.x, norm.weight], attributes, outputs=[output], name=name and f"{name}/{OPERATOR}")


def put_node(graph: ir.Graph, norm: RMSNorm, node: ir.Node) -> None:
    """Lets `node` compute the norm's output. What it replaces is left behind without a user."""
    graph.insert_before(norm.output.producer(), node)
    norm.output.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    # Two values of one graph cannot share a name, and the new one has to keep it.
    norm.output.name, node.outputs[0].name = f"{norm.output.name}.unfused", norm.output.name


# ---- recognition, from the mean on


class _Recogniser:
    def __init__(self, shapes: Shapes, types: ElementTypes, order: dict[ir.Node, int]) -> None:
        self._shapes = shapes
        self._type = types.of
        self._order = order

    def norm(self, mean: ir.Node) -> RMSNorm | None:
        wide = _squared(mean.inputs[0].producer())
        if wide is None or self._type(wide) != FLOAT or not _over_last_axis(mean, self._shapes.rank(wide)):
            return None
        for shifted, epsilon in _sums_with_constant(mean.outputs[0]):
            for normed in _normed(wide, shifted):
                found = self._in_half(wide, normed) or self._in_float(wide, normed)
                if found is not None:
                    return self._whole(*found, epsilon)
        return None

    def _whole(self, x: ir.Value, weight: ir.Value, output: ir.Value, epsilon: float) -> RMSNorm | None:
        shape = self._shapes.shape(x)
        width = self._shapes.dims.simplify(shape[-1]).constant if shape else None
        if width is None or _vector_length(weight) != width:
            return None
        nodes, _ = inner_nodes(output, {x}, self._order)
        return RMSNorm(x, weight, epsilon, output, nodes, width, self._type(x))

    def _in_half(self, wide: ir.Value, normed: ir.Value) -> Found | None:
        """float16 in and out: the weight multiplies behind the cast back, or is cast itself and multiplies before it."""
        cast = wide.producer()
        x = cast.inputs[0] if cast is not None and cast.op_type == "Cast" and is_standard(cast) else None
        if x is None or self._type(x) != HALF:
            return None
        for back in _casts(normed, HALF):
            for weight, product in self._times_weight(back, HALF):
                return x, weight, product
        for weight, product in self._times_weight(normed, FLOAT):
            source, backs = weight.producer(), _casts(product, HALF)
            if source is not None and self._type(source.inputs[0]) == HALF and backs and _is_only_used_by_one(product):
                return x, source.inputs[0], backs[0]
        return None

    def _in_float(self, wide: ir.Value, normed: ir.Value) -> Found | None:
        for weight, product in self._times_weight(normed, FLOAT):
            return wide, weight, product
        return None

    def _times_weight(self, value: ir.Value, kind: ir.DataType) -> list[tuple[ir.Value, ir.Value]]:
        """(w, value · w) of every w that is a constant vector of type `kind`."""
        products = [(_other(node, value), node.outputs[0]) for node in _users(value, "Mul")]
        return [(w, product) for w, product in products if _vector_length(w) is not None and self._type(w) == kind]


def _squared(node: ir.Node | None) -> ir.Value | None:
    """x of Pow(x, 2) or Mul(x, x)."""
    if node is None or not is_standard(node):
        return None
    if node.op_type == "Pow" and scalar(node.inputs[1]) == 2:
        return node.inputs[0]
    return node.inputs[0] if node.op_type == "Mul" and node.inputs[0] is node.inputs[1] else None


def _over_last_axis(mean: ir.Node, rank: int | None) -> bool:
    axes = axes_of(mean)
    last = axes == (-1,) or (rank is not None and axes == (rank - 1,))
    return last and attribute(mean, "keepdims", 1) == 1


def _users(value: ir.Value, *operators: str) -> list[ir.Node]:
    """The nodes of these operators in the graph of `value` (not in a branch or loop) that take it."""
    graph = value.producer() and value.producer().graph
    return [node for node in value.consumers() if node.op_type in operators and is_standard(node) and node.graph is graph]


def _other(node: ir.Node, value: ir.Value) -> ir.Value:
    """The second operand of a node that takes `value` in either place."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _sums_with_constant(value: ir.Value) -> list[tuple[ir.Value, float]]:
    sums = [(node.outputs[0], scalar(_other(node, value))) for node in _users(value, "Add")]
    return [(total, float(constant)) for total, constant in sums if constant is not None and constant >= 0]


def _normed(wide: ir.Value, shifted: ir.Value) -> list[ir.Value]:
    """``wide / sqrt(shifted)`` in any spelling."""
    roots = [node.outputs[0] for node in _users(shifted, "Sqrt")]
    inverses = [node.outputs[0] for node in _users(shifted, "Pow") if scalar(node.inputs[1]) == -0.5]
    quotients = []
    for root in roots:
        inverses += [node.outputs[0] for node in _users(root, "Reciprocal")]
        for node in _users(root, "Div"):
            if node.inputs[1] is root and scalar(node.inputs[0]) == 1:
                inverses.append(node.outputs[0])
            elif node.inputs[1] is root and node.inputs[0] is wide:
                quotients.append(node.outputs[0])
    products = [node.outputs[0] for inverse in inverses for node in _users(inverse, "Mul") if _other(node, inverse) is wide]
    return products + quotients


def _casts(value: ir.Value, kind: ir.DataType) -> list[ir.Value]:
    """What `value` is when it is cast to `kind`."""
    return [node.outputs[0] for node in _users(value, "Cast") if attribute(node, "to", 0) == kind]


def _is_only_used_by_one(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _vector_length(value: ir.Value) -> int | None:
    """The length of a constant vector, which may have been cast."""
    node = value.producer()
    if node is not None and node.op_type == "Cast" and is_standard(node):
        value = node.inputs[0]
    tensor = initializer_tensor(value)
    return int(tensor.shape[0]) if tensor is not None and len(tensor.shape) == 1 else None
