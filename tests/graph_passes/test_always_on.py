"""Networks that every token goes through: shared experts and dense layers (field report R17)."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.looped_graph import LoopedGraph, Spelling
from support.sessions import relative_difference, session

from ort_hina import fuse
from ort_hina.graph_passes import always_on, pipeline, routed_moe


class WithShared(LoopedGraph):
    """The routed experts, and a network of its own width for every token; `kind` says how the two are joined."""

    def __init__(self, spelling: Spelling, kind: str = "added", width: int = 20) -> None:
        self.kind, self.width = kind, width
        super().__init__(spelling)

    def finish(self) -> onnx.ModelProto:
        """The last node is the reshape of the routed sum to ``y``; here it becomes an operand."""
        reshape = self.nodes[-1]
        reshape.output[0], reshape.name = "routed", "reshape"
        shared = self.network("x")
        if self.kind == "gated":
            gate = self.op("Sigmoid", self.op("MatMul", "x", self.weight(self.spelling.hidden, 1)))
            shared = self.op("Mul", gate, shared)
        if self.kind == "gate_of_others":
            gate = self.op("Sigmoid", self.op("MatMul", self.op("Neg", "x"), self.weight(self.spelling.hidden, 1)))
            shared = self.op("Mul", gate, shared)
        if self.kind == "wide_gate":
            gate = self.op("Sigmoid", self.op("MatMul", "x", self.weight(self.spelling.hidden, self.spelling.hidden)))
            shared = self.op("Mul", gate, shared)
        if self.kind == "subtracted":
            self.nodes.append(helper.make_node("Sub", ["routed", shared], ["y"], name="node y"))
        elif self.kind == "twice":
            self.nodes.append(helper.make_node("Add", [self.op("Add", "routed", shared), shared], ["y"], name="node y"))
        else:
            self.nodes.append(helper.make_node("Add", [shared, "routed"], ["y"], name="node y"))
        return super().finish()

    def network(self, x: str) -> str:
        hidden = self.activate(self.op("MatMul", x, self.weight(self.spelling.hidden, self.width)))
        self.inner = hidden
        hidden = self.op("Mul", hidden, self.op("MatMul", x, self.weight(self.spelling.hidden, self.width)))
        return self.op("MatMul", hidden, self.weight(self.width, self.spelling.hidden))


def outputs(path, seed=0):
    random = np.random.default_rng(seed)
    feeds = {"x": random.standard_normal((2, 5, 8), np.float32), "logits": random.standard_normal((10, 4), np.float32)}
    return session(path).run(None, feeds)


def fused(tmp_path, model):
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    for found, expected in zip(outputs(report.output), outputs(tmp_path / "model.onnx"), strict=True):
        assert relative_difference(found, expected) < 1e-5
    nodes = onnx.load(report.output).graph.node
    return report, [node for node in nodes if node.op_type == "MoE"], [node.op_type for node in nodes]


@pytest.mark.parametrize("kind", ["added", "gated"])
def test_a_shared_expert_takes_the_routed_sum_along(tmp_path, kind):
    report, (routed, shared), operators = fused(tmp_path, WithShared(Spelling(), kind).model())
    assert (report.fused, report.shared_fused) == (1, 1)
    assert list(shared.input[1:3]) == ["", ""] and shared.input[3] == routed.output[0]
    assert "Add" not in operators and "Sigmoid" not in operators
    names = {attribute.name for attribute in shared.attribute}
    assert ("sigmoid_gate_offsets" in names) == (kind == "gated")
    assert [layer.verification for layer in report.shared] == ["verified"]


@pytest.mark.parametrize("kind", ["subtracted", "twice", "gate_of_others", "wide_gate"])
def test_what_is_no_plain_sum_stays_outside(tmp_path, kind):
    report, (_, shared), operators = fused(tmp_path, WithShared(Spelling(), kind).model())
    assert report.shared_fused == 1
    assert len(shared.input) < 4 or shared.input[3] == ""
    assert ("Sub" if kind == "subtracted" else "Add") in operators
    if "gate" in kind:
        assert "Sigmoid" in operators  # it is no gate of this network


def test_an_inner_value_that_others_read(tmp_path):
    builder = WithShared(Spelling())
    model = builder.model()
    model.graph.output.append(helper.make_tensor_value_info(builder.inner, TensorProto.FLOAT, None))
    report, moe, _ = fused(tmp_path, model)
    assert (report.fused, report.shared_fused, len(moe)) == (1, 0, 1)
    (layer,) = report.shared
    assert layer.shared and "inside the layer is an output of the model" in layer.reason
    assert any(layer.reason in warning for warning in report.warnings)


def test_a_model_without_routed_layers_is_left_alone(tmp_path):
    random = np.random.default_rng(0)
    weights = {"g": (8, 12), "u": (8, 12), "d": (12, 8)}
    nodes = [
        helper.make_node("MatMul", ["x", "g"], ["gate"]),
        helper.make_node("Sigmoid", ["gate"], ["s"]),
        helper.make_node("Mul", ["gate", "s"], ["silu"]),
        helper.make_node("MatMul", ["x", "u"], ["up"]),
        helper.make_node("Mul", ["silu", "up"], ["h"]),
        helper.make_node("MatMul", ["h", "d"], ["y"], name="down"),
    ]
    value = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), n) for n, shape in weights.items()]
    graph = helper.make_graph(nodes, "dense", [value("x", 1, ["b", "s", 8])], [value("y", 1, ["b", "s", 8])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    loaded = ir.from_proto(model).graph
    assert len(always_on.find(loaded, routed_moe.walked(list(loaded)))) == 1  # it would be understood
    assert pipeline.find(loaded).always_on == []
    onnx.save(model, tmp_path / "model.onnx")
    report = fuse(tmp_path / "model.onnx")
    assert (report.output, report.layers, report.shared) == (None, [], [])
