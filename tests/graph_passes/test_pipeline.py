"""What a model is told in which no layer was found."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from support.looped_graph import looped_model

from ort_hina.graph_passes import pipeline

K = numpy_helper.from_array(np.array([2]), "k")
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])


def hints(nodes, *, functions=(), inputs=(X,)):
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, None)]
    graph = helper.make_graph(nodes, "graph", list(inputs), outputs, [K])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return pipeline.hints(ir.from_proto(helper.make_model(graph, functions=list(functions), opset_imports=opsets)))


def test_nothing_to_say():
    assert hints([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)]) == []


def test_a_choice_that_is_not_known():
    (hint,) = hints([helper.make_node("TopK", ["x", "k"], ["values", "y"])])
    assert "1 TopK nodes: if they route to experts" in hint


def test_a_choice_inside_a_branch():
    def branch(name):
        node = helper.make_node("TopK", ["x", "k"], [f"{name}.values", name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.INT64, None)])

    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    (hint,) = hints([node], inputs=(X, condition))
    assert hint == "2 TopK nodes lie in branches or loops (If, Loop, Scan), which are not looked into"


def test_functions():
    body = helper.make_node("TopK", ["a", "b"], ["v", "i"])
    function = helper.make_function("local", "Choose", ["a", "b"], ["i"], [body], [helper.make_opsetid("", 18)])
    (hint,) = hints([helper.make_node("Choose", ["x", "k"], ["y"], domain="local")], functions=[function])
    assert "functions of its own (Choose, ...)" in hint and "onnx.inliner" in hint


def test_a_graph_with_layers_is_read_whole():
    found = pipeline.find(ir.from_proto(looped_model(experts=4)).graph)
    (layer,) = found.routed
    assert found.always_on == [] and not isinstance(found.router_of(layer), str)
