"""Mixtures of experts with stacked weights, as exporters other than Optimum's loop write them, built node by node.

``batched``: torch.onnx of transformers 5 (each pair of token and slot gathers its expert's matrices). ``dense``: Optimum's
gpt-oss (every expert computes every token). ``grouped``: transformers' own exporter (pairs are sorted by expert). The model
takes ``x`` [B, S, H] and answers with ``y = x + experts(x)``; the router is part of it. All names are numbers; `marks` tells
a test which node is which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .looped_graph import LoopedGraph

# Of clamped swiglu: far nearer to zero than any model's, so that tokens reach it.
ALPHA, LIMIT = 1.702, 1.0
END = 2**63 - 1


@dataclass
class StackedGraph(LoopedGraph):
    """Builds the model; of the `spelling` only sizes, element type and opset count.

    Attributes:
        form: see above.
        clamped: gpt-oss's experts (clamped swiglu, biases, gate and up interleaved) and router (softmax of the k best).
        shared: a shared expert as Qwen2-MoE has it.
    """

    form: str = "batched"
    clamped: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.marks: dict[str, str] = {}

    def mark(self, mark: str, operator: str, *inputs: str, outputs: int = 1, **attributes):
        """`op`, and the node can be found by `mark`."""
        made = self.op(operator, *inputs, outputs=outputs, **attributes)
        self.marks[mark] = self.nodes[-1].name
        return made

    def number(self, value: float) -> str:
        return self.const(value, self.spelling.dtype)

    def model(self) -> onnx.ModelProto:
        rows = self.mark("rows", "Reshape", "x", self.const([-1, self.spelling.hidden]))
        total = getattr(self, f"_{self.form}")(rows, *self._choose(rows))
        if self.shared:
            total = self.mark("with_shared", "Add", total, self._shared(rows))
        moe = self.op("Reshape", total, self.op("Shape", "x"))
        self.nodes.append(helper.make_node("Add", ["x", moe], ["y"], name="node y"))
        self.marks["residual"] = "node y"
        return self.finish()

    def finish(self) -> onnx.ModelProto:
        s = self.spelling
        x, y = (helper.make_tensor_value_info(name, self.element, ["batch", "length", s.hidden]) for name in "xy")
        graph = helper.make_graph(self.nodes, "stacked", [x], [y], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", s.opset)], ir_version=8)

    # ---- parts that the forms share

    def _choose(self, rows: str) -> tuple[str, str]:
        """Routing weights and ids [T, k]."""
        s = self.spelling
        logits = self.mark("logits", "Gemm", rows, self.weight(s.experts, s.hidden), transB=1)
        if self.clamped:
            values, ids = self.mark("choice", "TopK", logits, self.const([s.k]), outputs=2, axis=-1)
            return self.mark("weights", "Softmax", values, axis=1), ids
        scores = self.mark("scores", "Softmax", logits, axis=-1)
        values, ids = self.mark("choice", "TopK", scores, self.const([s.k]), outputs=2, axis=-1)
        total = self.mark("total", "ReduceSum", values, self.const([-1]), keepdims=1)
        return self.mark("weights", "Div", values, total), ids

    def _hidden(self, both: str, axis: int) -> str:
        """From gate and up side by side along `axis` to what goes into down."""
        if not self.clamped:
            gate, up = self.mark("halves", "Split", both, outputs=2, axis=axis, num_outputs=2)
            gate = self.mark("silu", "Mul", gate, self.mark("sigmoid", "Sigmoid", gate))
            return self.mark("product", "Mul", gate, up)
        gate, up = (
            self.mark(name, "Slice", both, self.const([start]), self.const([END]), self.const([axis]), self.const([2]))
            for start, name in enumerate(("gate", "up"))
        )
        gate = self.mark("gate_clip", "Clip", gate, "", self.number(LIMIT))
        up = self.mark("up_clip", "Clip", up, self.number(-LIMIT), self.number(LIMIT))
        sigmoid = self.mark("sigmoid", "Sigmoid", self.mark("alpha", "Mul", gate, self.number(ALPHA)))
        return self.mark("product", "Mul", self.mark("beta", "Add", up, self.number(1)), self.op("Mul", gate, sigmoid))

    def _shared(self, rows: str) -> str:
        s = self.spelling
        width = s.inter + 2
        gate = self.op("Gemm", rows, self.weight(width, s.hidden), transB=1)
        up = self.op("Gemm", rows, self.weight(width, s.hidden), transB=1)
        hidden = self.op("Mul", self.op("Mul", gate, self.mark("shared_sigmoid", "Sigmoid", gate)), up)
        down = self.mark("shared_down", "Gemm", hidden, self.weight(s.hidden, width), transB=1)
        weight = self.mark("shared_gate", "Gemm", rows, self.weight(1, s.hidden), transB=1)
        return self.op("Mul", self.mark("shared_weight", "Sigmoid", weight), down)

    # ---- forms

    def _batched(self, rows: str, weights: str, ids: str) -> str:
        s = self.spelling
        column = self.mark("copies", "Unsqueeze", rows, self.const([1]))
        spread = self.mark("spread", "Expand", column, self.const([1, s.k, 1]))
        repeated = self.mark("repeated", "Reshape", spread, self.const([-1, s.hidden]))
        flat = self.mark("flat_ids", "Reshape", ids, self.const([-1]))
        index = self.mark("index", "Unsqueeze", flat, self.const([-1]))
        first = self._picked("first", repeated, index, s.hidden, 2 * s.inter)
        second = self._picked("second", self._hidden(first, 1), index, s.inter, s.hidden)
        flat = self.mark("flat_weights", "Reshape", weights, self.const([-1]))
        weighed = self.mark("weighed", "Mul", second, self.op("Unsqueeze", flat, self.const([-1])))
        slots = self.mark("slots", "Reshape", weighed, self.const([-1, s.k, s.hidden]))
        return self.mark("sum", "ReduceSum", slots, self.const([1]), keepdims=0)

    def _picked(self, mark: str, rows: str, index: str, inputs: int, outputs: int) -> str:
        """Every row times the matrix of its own expert: [N, K] and a column; of gpt-oss a row and [K, N], plus a bias."""
        s = self.spelling
        axis = self.const([1 if self.clamped else -1])
        vector = self.op("Unsqueeze", rows, axis)
        shape = (inputs, outputs) if self.clamped else (outputs, inputs)
        matrices = self.mark(f"{mark}_matrices", "GatherND", self.weight(s.experts, *shape), index)
        pair = (vector, matrices) if self.clamped else (matrices, vector)
        product = self.op("Squeeze", self.mark(f"{mark}_product", "MatMul", *pair), axis)
        if not self.clamped:
            return product
        return self.op("Add", product, self.mark(f"{mark}_bias", "GatherND", self.weight(s.experts, outputs), index))

    def _dense(self, rows: str, weights: str, ids: str) -> str:
        s = self.spelling
        zero = numpy_helper.from_array(np.zeros(1, s.dtype))
        zeros = self.mark("zeros", "ConstantOfShape", self.op("Shape", self._output("logits")), value=zero)
        scores = self.mark("scattered", "ScatterElements", zeros, ids, weights, axis=1)
        tiled = self.mark("tiled", "Tile", rows, self.const([s.experts, 1]))
        every = self.op("Reshape", tiled, self.const([s.experts, -1, s.hidden]))
        first = self._all("first", every, s.hidden, 2 * s.inter)
        second = self._all("second", self._hidden(first, 2), s.inter, s.hidden)
        turned = self.mark("turned", "Transpose", scores, perm=[1, 0])
        column = self.op("Unsqueeze", self.op("Reshape", turned, self.const([s.experts, -1])), self.const([2]))
        return self.mark("sum", "ReduceSum", self.mark("weighed", "Mul", second, column), self.const([0]), keepdims=0)

    def _all(self, mark: str, rows: str, inputs: int, outputs: int) -> str:
        product = self.mark(f"{mark}_product", "MatMul", rows, self.weight(self.spelling.experts, inputs, outputs))
        return self.mark(f"{mark}_bias", "Add", product, self.weight(self.spelling.experts, 1, outputs))

    def _grouped(self, rows: str, weights: str, ids: str) -> str:
        s = self.spelling
        flat = self.mark("flat_ids", "Reshape", ids, self.const([-1]))
        count = self.op("Shape", flat)
        sorted_ids, order = self.mark("sort", "TopK", flat, count, outputs=2, axis=-1, largest=0)
        column = self.mark("order_column", "Unsqueeze", order, self.const([-1]))
        token = self.mark("token", "Div", order, self.const(s.k))
        gathered = self.mark("gathered", "GatherND", rows, self.op("Unsqueeze", token, self.const([-1])))
        ranges = self._ranges(sorted_ids, count)
        first = self._by_group("first", gathered, ranges, s.hidden, 2 * s.inter)
        second = self._by_group("second", self._hidden(first, 1), ranges, s.inter, s.hidden)
        flat_weights = self.mark("flat_weights", "Reshape", weights, self.const([-1]))
        picked = self.mark("pair_weights", "GatherND", flat_weights, column)
        weighed = self.mark("weighed", "Mul", second, self.op("Unsqueeze", picked, self.const([-1])))
        empty = self.op("Expand", self.const(0), count)
        numbers = self.op("Range", self.const(0), self.op("Squeeze", count, self.const([0])), self.const(1))
        inverse = self.mark("inverse", "ScatterND", empty, column, numbers)
        back = self.mark("back", "GatherND", weighed, self.op("Unsqueeze", inverse, self.const([-1])))
        slots = self.op("Reshape", back, self.const([-1, s.k, s.hidden]))
        return self.mark("sum", "ReduceSum", slots, self.const([1]), keepdims=0)

    def _ranges(self, sorted_ids: str, count: str) -> list[str]:
        """For each expert the places of its pairs, from a histogram of the ids."""
        s = self.spelling
        bins = self.mark("bins", "Div", self.op("Cast", sorted_ids, to=TensorProto.FLOAT), self.const(0.875, np.float32))
        clipped = self.mark(
            "clip", "Clip", self.op("Cast", bins, to=TensorProto.INT64), self.const(0), self.const(s.experts - 1)
        )
        zeros = self.const([0.0] * s.experts, np.float32)
        ones = self.op("Expand", self.const(1.0, np.float32), count)
        histogram = self.mark("histogram", "ScatterElements", zeros, clipped, ones, axis=0, reduction="add")
        ends = self.op("CumSum", self.op("Cast", histogram, to=TensorProto.INT64), self.const(0))
        parts = self.op("Split", ends, outputs=s.experts, axis=0, num_outputs=s.experts)
        bounds = [self.const(0), *(self.op("Squeeze", part, self.const([0])) for part in parts)]
        return [self.op("Range", low, high, self.const(1)) for low, high in zip(bounds, bounds[1:])]

    def _by_group(self, mark: str, rows: str, ranges: list[str], inputs: int, outputs: int) -> str:
        experts = self.spelling.experts
        stack = self.weight(experts, inputs, outputs)
        matrices = self.op("Split", stack, outputs=experts, axis=0, num_outputs=experts)
        products = []
        for expert, (places, matrix) in enumerate(zip(ranges, matrices)):
            group = self.op("Gather", rows, places, axis=0)
            matrix = self.mark(f"{mark}_matrix_{expert}", "Squeeze", matrix, self.const([0]))
            products.append(self.mark(f"{mark}_product_{expert}", "MatMul", group, matrix))
        return self.mark(f"{mark}_joined", "Concat", *products, axis=0)

    def _output(self, mark: str) -> str:
        return next(node.output[0] for node in self.nodes if node.name == self.marks[mark])
