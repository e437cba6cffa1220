"""What nothing uses goes; what somebody uses stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ort_hina.graph_passes.cleanup import remove_unused


def test_a_chain_goes_with_its_last_user():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Add", ["a", "used"], ["y"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "unused"], ["c"]),
    ]
    values = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y", "default")}
    initializers = [numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("used", "unused", "default")]
    graph = helper.make_graph(nodes, "g", [values["x"], values["default"]], [values["y"]], initializers)
    model = ir.from_proto(helper.make_model(graph))
    assert remove_unused(model.graph) == 2
    assert [node.op_type for node in model.graph] == ["Relu", "Add"]
    # The default of an input belongs to the model's interface.
    assert set(model.graph.initializers) == {"used", "default"}
    assert remove_unused(model.graph) == 0
