"""Models of one com.microsoft::MoE (or QMoE) node between graph inputs and output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

INPUTS = ("x", "logits", "fc1", "fc1_bias", "fc2", "fc2_bias", "fc3", "fc3_bias")
FUSED = ("swiglu", "geglu")


@dataclass
class ContribMoE:
    """What to build: ``x`` [T, H] (or [B, S, H]) and ``logits`` [T, E] in, ``y`` like x out.

    Attributes:
        attributes: of the node, as they are; what is absent here is absent there.
        biases: for fc1, fc2 and, where the activation has one, fc3.
        scale: of fc1 and fc3, beyond what keeps their outputs near 1.
    """

    experts: int = 4
    hidden: int = 6
    inter: int = 5
    attributes: dict[str, Any] = field(default_factory=dict)
    biases: bool = True
    dtype: type = np.float32
    rank: int = 2
    scale: float = 1.0
    seed: int = 0

    def weights(self) -> dict[str, np.ndarray]:
        """The random constants, by input name. Their shapes follow from ``activation_type`` and ``swiglu_fusion``."""
        random = np.random.default_rng([self.seed, 1])
        is_pair = self.attributes.get("activation_type") in FUSED
        is_fused = is_pair and self.attributes.get("swiglu_fusion", 0) != 0
        shapes = {"fc1": (self.inter * (1 + is_fused), self.hidden), "fc2": (self.hidden, self.inter)}
        if is_pair and not is_fused:
            shapes["fc3"] = (self.inter, self.hidden)
        made = {}
        for name, (rows, columns) in shapes.items():
            scale = (1.0 if name == "fc2" else self.scale) / np.sqrt(columns)
            made[name] = (scale * random.standard_normal((self.experts, rows, columns))).astype(self.dtype)
            if self.biases:
                made[f"{name}_bias"] = random.standard_normal((self.experts, rows)).astype(self.dtype)
        return made

    def model(self, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
        weights = self.weights() if weights is None else weights
        given = {"x", "logits", *weights}
        names = [name if name in given else "" for name in INPUTS]
        while not names[-1]:
            names.pop()
        node = helper.make_node("MoE", names, ["y"], "moe/node", domain="com.microsoft", **self.attributes)
        return self.wrap(node, [numpy_helper.from_array(array, name) for name, array in weights.items()])

    def wrap(self, node: onnx.NodeProto, initializers: list[onnx.TensorProto]) -> onnx.ModelProto:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        tokens = ["tokens"] if self.rank == 2 else ["batch", "length"]
        inputs = [
            helper.make_tensor_value_info("x", element, [*tokens, self.hidden]),
            helper.make_tensor_value_info("logits", element, ["rows", self.experts]),
        ]
        output = helper.make_tensor_value_info("y", element, [*tokens, self.hidden])
        graph = helper.make_graph([node], "contrib", inputs, [output], initializers)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self, tokens: int, scale: float = 1.0) -> dict[str, np.ndarray]:
        """Random inputs; with three axes the tokens are split over two rows if they can be."""
        random = np.random.default_rng([self.seed, 2])
        x = scale * random.standard_normal((tokens, self.hidden))
        logits = 2 * random.standard_normal((tokens, self.experts))
        if self.rank == 3:
            x = x.reshape(2 if tokens % 2 == 0 else 1, -1, self.hidden)
        return {"x": x.astype(self.dtype), "logits": logits.astype(self.dtype)}


def quantised(experts: int = 4, hidden: int = 32, inter: int = 64, **attributes: Any) -> onnx.ModelProto:
    """A QMoE of 4-bit weights and a scale for each block of 32, as the builder of onnxruntime-genai writes it."""
    random = np.random.default_rng(0)
    arrays = {
        "fc1": random.integers(0, 256, (experts, 2 * inter, hidden // 2), np.uint8),
        "fc1_scales": random.random((experts, 2 * inter, hidden // 32), np.float32) / 16,
        "fc2": random.integers(0, 256, (experts, hidden, inter // 2), np.uint8),
        "fc2_scales": random.random((experts, hidden, inter // 32), np.float32) / 16,
    }
    names = ["x", "logits", "fc1", "fc1_scales", "", "fc2", "fc2_scales"]
    stated = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "expert_weight_bits": 4, "block_size": 32}
    node = helper.make_node("QMoE", names, ["y"], "moe/node", domain="com.microsoft", **(stated | attributes))
    sizes = ContribMoE(experts=experts, hidden=hidden, inter=inter)
    return sizes.wrap(node, [numpy_helper.from_array(array, name) for name, array in arrays.items()])
