"""Verification of routers: what is equal is verified, and every wrong attribute is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support import router_graphs as graphs
from support.router_graphs import BIAS, RouterGraph, built, values_of

from ort_hina.graph_passes.router_match import match_router
from ort_hina.graph_passes.router_node import make_router_node
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.verify_router import verify_router


def verdict(model, folder: Path = Path("/"), **wrong):
    """Of the fused router, with the attributes of `wrong`."""
    read, ids, weights = values_of(model) if isinstance(model, onnx.ModelProto) else model
    match = match_router(Shapes(), ids, weights)
    node = make_router_node(match.call, "router", match.ids, match.weights)
    for attribute in ir.convenience.convert_attributes(wrong):
        node.attributes[attribute.name] = attribute
    return verify_router(match, node, read, folder)


RIGHT = {
    "softmax, topk, div": (graphs.softmax_topk, {}),
    "softmax, topk": (graphs.softmax_topk, {"norm": None, "scale": 2.5}),
    "topk, softmax": (graphs.topk_softmax, {}),
    "llama 4": (graphs.topk_sigmoid, {}),
    "ernie": (graphs.ernie, {}),
    "sigmoid and bias": (graphs.sigmoid_bias, {}),
    "deepseek v3": (graphs.deepseek_v3, {}),
    "deepseek v3 by dynamo": (graphs.deepseek_v3_dynamo, {}),
    "deepseek v2": (graphs.deepseek_v2, {}),
    "phi-3.5": (graphs.sparse_mixer, {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name):
    spelling, options = RIGHT[name]
    found = verdict(built(spelling, **options))
    assert found.state == "verified" and found.difference <= found.tolerance, found


WRONG = {
    "k": (graphs.softmax_topk, {"k": 2}),
    "score": (graphs.softmax_topk, {"score": "sigmoid"}),
    "normalize": (graphs.softmax_topk, {"normalize": 0}),
    "epsilon": (graphs.sigmoid_bias, {"normalize_epsilon": 0.01}),
    "minimum": (graphs.ernie, {"normalize_min": 0.9}),
    "scale": (graphs.deepseek_v3, {"scale": 1.0}),
    "weight function": (graphs.topk_softmax, {"weight_function": "none"}),
    "groups": (graphs.deepseek_v3, {"num_groups": 1, "top_groups": 1}),
    "top groups": (graphs.deepseek_v3, {"top_groups": 1}),
    "group score": (graphs.deepseek_v3, {"group_score": "max"}),
    "jitter": (graphs.sparse_mixer, {"jitter": 0.2}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    spelling, wrong = WRONG[name]
    found = verdict(built(spelling), **wrong)
    assert found.state == "failed" and found.detail, found


def test_an_attribute_that_the_operator_refuses():
    found = verdict(built(graphs.softmax_topk), score="cosine")
    assert found.state == "failed" and "the fused node does not run" in found.detail


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_logits_in_16_bits(element):
    graph = RouterGraph(element=element)
    assert verdict(graph.model(*graphs.softmax_half_logits(graph))).state == "verified"


def test_logits_in_three_dimensions():
    graph = RouterGraph()
    scores = graph.op("Softmax", graph.input("logits", "batch", "length", graphs.EXPERTS), axis=-1)
    values, ids = graph.top_k(scores, 3)
    assert verdict(graph.model(ids, values)).state == "verified"


def test_a_bias_that_is_computed():
    graph = RouterGraph()
    scores = graph.op("Sigmoid", graph.logits())
    bias = graph.op("Squeeze", graph.initializer(BIAS[None]), graph.const([0]))
    _, ids = graph.top_k(graph.op("Add", scores, bias), 3)
    model = graph.model(ids, graph.op("GatherElements", scores, ids, axis=-1))
    read, ids, weights = values_of(model)
    assert match_router(Shapes(), ids, weights).call.bias.producer().op_type == "Squeeze"
    assert verdict((read, ids, weights)).state == "verified"


@pytest.mark.parametrize("shape", [(12,), (1, 12)])
def test_a_bias_in_a_data_file(tmp_path, shape):
    model = built(graphs.sigmoid_bias)
    bias = model.graph.initializer[0]
    bias.CopyFrom(onnx.numpy_helper.from_array(BIAS.reshape(shape), "bias"))
    (tmp_path / "weights").write_bytes(b"\0" * 4096 + BIAS.tobytes())
    bias.ClearField("raw_data")
    bias.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights", "offset": "4096", "length": str(BIAS.nbytes)}.items():
        bias.external_data.add(key=key, value=value)
    read, ids, weights = values_of(model)
    ir.external_data.set_base_dir(read.graph, tmp_path)
    match = match_router(Shapes(), ids, weights)
    assert isinstance(match.call.bias.const_value, ir.ExternalTensor)
    np.testing.assert_array_equal(match.call.bias.const_value.numpy(), BIAS)
    assert verdict((read, ids, weights), tmp_path).state == "verified"


def test_an_original_that_does_not_run():
    """ONNX Runtime has no TopK of bfloat16."""
    graph = RouterGraph(element=TensorProto.BFLOAT16)
    values, ids = graph.top_k(graph.logits(), 3)
    found = verdict(graph.model(ids, graph.op("Softmax", graph.cast(values), axis=-1)))
    assert found.state == "not run" and "cannot run the original" in found.detail
