"""Models of one attention node as exporters write it, and the same model with the node of ort_hina in its place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ort_hina.graph_passes import attention_nodes
from ort_hina.graph_passes.attention_layer import AttentionLayer, RefusedAttention
from ort_hina.graph_passes.attention_node import make_attention_node, put_attention_node
from ort_hina.graph_passes.cleanup import remove_unused
from ort_hina.graph_passes.shapes import Shapes

from .sessions import session

UNIT = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float16): 2.0**-11}


@dataclass
class AttentionGraph:
    """A model under construction. `shapes` says, by input, what each dimension is called or how long it is."""

    nodes: list[onnx.NodeProto]
    feeds: dict[str, np.ndarray]
    shapes: dict[str, Sequence[str | int]]
    outputs: list[str]
    output_shapes: dict[str, Sequence[str | int]] = field(default_factory=dict)
    opset: int = 24
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), self.shapes.get(name))
            for name, array in self.feeds.items()
        ]
        kind = helper.np_dtype_to_tensor_dtype(next(iter(self.feeds.values())).dtype)
        outputs = [helper.make_tensor_value_info(name, kind, self.output_shapes.get(name)) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "attention", inputs, outputs)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.constants.items())
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def found(self, **options: Any) -> list[AttentionLayer | RefusedAttention]:
        return attention_nodes.find(ir.from_proto(self.model()).graph, Shapes(), **options)

    def reason(self, **options: Any) -> str:
        """Why the only node is refused."""
        (layer,) = self.found(**options)
        assert isinstance(layer, RefusedAttention), layer
        return layer.reason

    def converted(self) -> onnx.ModelProto:
        """The model with the node of ort_hina."""
        model = ir.from_proto(self.model())
        (layer,) = attention_nodes.find(model.graph, Shapes())
        assert isinstance(layer, AttentionLayer), layer
        put_attention_node(model.graph, layer, make_attention_node(layer))
        model.graph.sort()
        remove_unused(model.graph)
        return ir.to_proto(model)

    def answers(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Those of ONNX Runtime's own node, and of ort_hina's."""
        return tuple(
            dict(zip(self.outputs, session(model).run(None, self.feeds), strict=True))
            for model in (self.model(), self.converted())
        )


def make_node(
    operator: str, names: Sequence[str], feeds: Collection[str], outputs: Sequence[str], domain: str = "", **attributes
) -> onnx.NodeProto:
    """A node that takes those of `names` that are in `feeds`, in this order."""
    inputs = [name if name in feeds else "" for name in names]
    while inputs and not inputs[-1]:
        inputs.pop()
    named = {name: value for name, value in attributes.items() if value is not None}
    return helper.make_node(operator, inputs, outputs, name="layer 3/attention", domain=domain, **named)


def allowed(query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float | None) -> float:
    """How far two evaluations may be apart.

    An output is a weighted mean of values. A score is a sum of D products, off by at most (D + 8) units of its magnitudes,
    in each evaluation; a weight is off by twice that, relative, and by a unit for each of T keys that are summed.
    Both evaluations round the output once.

    Args:
        query, key, value: [..., head size], of old and new tokens.
    """
    unit = UNIT[query.dtype]
    size, keys = query.shape[-1], value.shape[-2]
    lengths = [np.sqrt((x.astype(np.float64) ** 2).sum(axis=-1)).max() for x in (query, key)]
    score = (size + 8) * unit * lengths[0] * lengths[1] * (scale or size**-0.5)
    return (2 * (2 * score + (keys + 8) * unit) + 2 * unit) * float(np.abs(value).max())
