"""A mixture of experts as exporters unroll it, built node by node: every stage can be spelled in several ways.

The model takes ``x`` [B, S, H] and the router's ``logits`` [B*S, E], so that a test decides who is chosen, and answers
with ``y`` [B, S, H]. All names are numbers: nothing can be recognised by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Spelling:
    """How each stage is written, and the sizes. The defaults are Optimum's Qwen3-MoE."""

    experts: int = 4
    k: int = 2
    hidden: int = 8
    inter: int = 12
    dtype: type = np.float32
    opset: int = 18
    routing: str = "softmax_topk_div"  # softmax_topk, topk_softmax
    mask: str = "one_hot"  # equal
    order: str = "slot_token"  # token_slot
    coordinates: str = "split"  # gather
    combine: str = "scatter_elements"  # scatter_elements_add, scatter_nd_add
    activation: str = "silu"  # gelu, gelu_operator, relu
    gated: bool = True
    transposed: bool = False  # the weights are stored [N, K], with a Transpose
    gemm: bool = False  # Gemm with transB and a bias
    bodies: tuple[int, ...] | None = None  # the experts that the graph holds; None: all of them
    seed: int = 0


# Every way to write a stage, one at a time.
SPELLINGS = (
    {"mask": "equal"},
    {"order": "token_slot"},
    {"mask": "equal", "order": "token_slot"},
    {"coordinates": "gather"},
    {"combine": "scatter_elements_add"},
    {"combine": "scatter_nd_add"},
    {"activation": "gelu"},
    {"activation": "gelu_operator", "opset": 20},
    {"activation": "relu", "gated": False},
    {"transposed": True},
    {"gemm": True},
    {"dtype": np.float16},
)


def spelling_name(spelling: dict) -> str:
    return "-".join(f"{key}={getattr(value, '__name__', value)}" for key, value in spelling.items())


@dataclass
class LoopedGraph:
    """Builds the model of a `Spelling`; `model()` gives the ONNX model."""

    spelling: Spelling = field(default_factory=Spelling)

    def __post_init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(self.spelling.seed)
        self._counter = 0

    # ---- plumbing

    def name(self) -> str:
        self._counter += 1
        return f"{self._counter}"

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes):
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=f"node {names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, value, dtype=np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def weight(self, *shape: int) -> str:
        array = (self.random.standard_normal(shape) * 0.4).astype(self.spelling.dtype)
        tensor = numpy_helper.from_array(array, self.name())
        self.initializers.append(tensor)
        return tensor.name

    @property
    def element(self) -> int:
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.spelling.dtype))

    # ---- stages

    def model(self) -> onnx.ModelProto:
        s = self.spelling
        sizes = self.op("Shape", "x")
        batch, length, width = (self.op("Gather", sizes, self.const(axis), axis=0) for axis in range(3))
        one_width = self.op("Unsqueeze", width, self.const([0]))
        rows = self.op("Reshape", "x", self.op("Concat", self.const([-1]), one_width, axis=0))
        weights, ids = self.route()
        masks = self.masks(ids)
        tokens = self.op("Unsqueeze", self.op("Mul", batch, length), self.const([0]))
        total = self.zeros(self.op("Concat", tokens, one_width, axis=0))
        weights_3d = self.op("Unsqueeze", weights, self.const([2]))
        for expert in range(s.experts) if s.bodies is None else s.bodies:
            total = self.add_expert(total, rows, weights_3d, self.mask(masks, expert))
        self.nodes.append(helper.make_node("Reshape", [total, sizes], ["y"], name="node y", allowzero=1))
        return self.finish()

    def finish(self) -> onnx.ModelProto:
        s = self.spelling
        inputs = [
            helper.make_tensor_value_info("x", self.element, ["batch", "length", s.hidden]),
            helper.make_tensor_value_info("logits", self.element, ["tokens", s.experts]),
        ]
        output = helper.make_tensor_value_info("y", self.element, ["batch", "length", s.hidden])
        graph = helper.make_graph(self.nodes, "looped", inputs, [output], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", s.opset)], ir_version=8)

    def route(self) -> tuple[str, str]:
        s, k = self.spelling, self.const([self.spelling.k])
        if s.routing == "topk_softmax":
            values, ids = self.op("TopK", "logits", k, outputs=2, axis=-1)
            return self.op("Softmax", values, axis=-1), ids
        values, ids = self.op("TopK", self.op("Softmax", "logits", axis=1), k, outputs=2, axis=-1)
        if s.routing == "softmax_topk_div":
            values = self.op("Div", values, self.op("ReduceSum", values, self.const([-1]), keepdims=1))
        return values, ids

    def masks(self, ids: str) -> str:
        s = self.spelling
        if s.mask == "equal":
            return ids
        hot = self.op("OneHot", ids, self.const(s.experts), self.const([0, 1]), axis=-1)
        return self.op("Transpose", hot, perm=[2, 1, 0] if s.order == "slot_token" else [2, 0, 1])

    def mask(self, masks: str, expert: int) -> str:
        s = self.spelling
        if s.mask == "equal":
            mask = self.op("Equal", masks, self.const(expert))
            return mask if s.order == "token_slot" else self.op("Transpose", mask, perm=[1, 0])
        return self.op("Cast", self.op("Gather", masks, self.const(expert), axis=0), to=TensorProto.BOOL)

    def picks(self, mask: str) -> tuple[str, str]:
        """Token and slot of each pick."""
        found = self.op("NonZero", mask)
        if self.spelling.coordinates == "gather":
            pair = [self.op("Gather", found, self.const(i), axis=0) for i in (0, 1)]
        else:
            split = self.op("Split", self.op("Transpose", found, perm=[1, 0]), self.const([1, 1]), outputs=2, axis=1)
            pair = [self.op("Squeeze", half, self.const([1])) for half in split]
        slot, token = pair if self.spelling.order == "slot_token" else pair[::-1]
        return token, slot

    def add_expert(self, total: str, rows: str, weights_3d: str, mask: str) -> str:
        token, slot = self.picks(mask)
        gathered = self.op("Gather", self.op("Unsqueeze", rows, self.const([0])), token, axis=1)
        features = self.op("Reshape", gathered, self.const([-1, self.spelling.hidden]))
        output = self.op("Mul", self.expert(features), self.pick_weights(weights_3d, token, slot))
        return self.combine(total, output, token)

    def expert(self, features: str) -> str:
        s = self.spelling
        hidden = self.activate(self.linear(features, s.hidden, s.inter))
        if s.gated:
            hidden = self.op("Mul", hidden, self.linear(features, s.hidden, s.inter))
        return self.linear(hidden, s.inter, s.hidden)

    def linear(self, features: str, inputs: int, outputs: int) -> str:
        if self.spelling.gemm:
            return self.op("Gemm", features, self.weight(outputs, inputs), self.weight(outputs), transB=1)
        if self.spelling.transposed:
            return self.op("MatMul", features, self.op("Transpose", self.weight(outputs, inputs), perm=[1, 0]))
        return self.op("MatMul", features, self.weight(inputs, outputs))

    def activate(self, x: str) -> str:
        kind = self.spelling.activation
        if kind == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        if kind == "gelu":
            erf = self.op("Erf", self.op("Div", x, self.const(2**0.5, self.spelling.dtype)))
            product = self.op("Mul", x, self.op("Add", erf, self.const(1, self.spelling.dtype)))
            return self.op("Mul", product, self.const(0.5, self.spelling.dtype))
        return self.op({"gelu_operator": "Gelu", "relu": "Relu"}.get(kind, kind), x)

    def pick_weights(self, weights_3d: str, token: str, slot: str) -> str:
        sizes = self.op("Shape", weights_3d)
        k, one = (self.op("Gather", sizes, self.const([axis]), axis=0) for axis in (1, 2))
        place = self.op("Add", slot, self.op("Mul", token, k))
        found = self.op("Gather", self.op("Flatten", weights_3d, axis=2), place, axis=0)
        column = self.op("Reshape", found, self.op("Concat", self.const([-1]), one, axis=0))
        return self.op("Reshape", column, self.op("Concat", self.op("Shape", place), one, axis=0))

    def combine(self, total: str, output: str, token: str) -> str:
        column = self.op("Unsqueeze", token, self.const([1]))
        if self.spelling.combine == "scatter_nd_add":
            return self.op("ScatterND", total, column, output, reduction="add")
        first = self.op("Slice", total, self.const([0, 0]), self.const([1, 2**63 - 1]), self.const([0, 1]))
        output = self.op("Expand", output, self.op("Shape", first))
        index = self.op("Expand", column, self.op("Shape", output))
        if self.spelling.combine == "scatter_elements_add":
            return self.op("ScatterElements", total, index, output, axis=0, reduction="add")
        scattered = self.op("ScatterElements", self.zeros(self.op("Shape", total)), index, output, axis=0)
        return self.op("Add", total, scattered)

    def zeros(self, shape: str) -> str:
        return self.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, self.spelling.dtype)))


def looped_model(**spelling) -> onnx.ModelProto:
    return LoopedGraph(Spelling(**spelling)).model()
