"""The node that stands for attention: its inputs and attributes, and the graph with it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto
from support.attention_graphs import Spelling, feeds, fused_model, model

import ort_hina
from ort_hina.graph_passes import attention_match
from ort_hina.graph_passes.attention_layer import INPUTS
from ort_hina.graph_passes.attention_node import make_attention_node
from ort_hina.graph_passes.shapes import Shapes


def _node(**spelling) -> ir.Node:
    (layer,) = attention_match.find(ir.serde.deserialize_model(model(Spelling(**spelling))).graph, Shapes())
    return make_attention_node(layer)


def _inputs(node: ir.Node) -> dict[str, str]:
    return {name: value.name for name, value in zip(INPUTS, node.inputs, strict=False) if value is not None}


def test_only_what_is_used_is_an_input():
    assert _inputs(_node()) == {
        "query": "q",
        "key": "k",
        "value": "v",
        "past_key": "past_key",
        "past_value": "past_value",
        "attention_mask": "attention_mask",
    }
    assert list(_inputs(_node(mask="causal"))) == ["query", "key", "value", "past_key", "past_value"]


def test_attributes_that_are_not_the_default():
    def attributes(**spelling):
        return {name: attribute.value for name, attribute in _node(**spelling).attributes.items()}

    plain = attributes(scale="scores")
    assert plain == {"num_heads": 4, "kv_num_heads": 2, "scale": 0.25}
    more = attributes(scale="scores", rotary="interleaved", window=3, softcap=2.0, norm="head")
    assert more.pop("qk_norm_epsilon") == pytest.approx(1e-5)
    assert more == plain | {"do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 3, "softcap": 2.0}
    assert attributes(mask="none")["causal"] == 0


def _session(proto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _compare(proto, fused, tolerance=1e-5, **sizes):
    given = feeds(proto, **sizes)
    expected, found = (_session(each).run(None, given) for each in (proto, fused))
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * np.abs(a).max())


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_graph_keeps_its_inputs_and_outputs(element):
    proto = model(Spelling(element=element, rotary="half", norm="head", sinks=True))
    fused = fused_model(proto)
    assert [(v.name, v.type) for v in fused.graph.input] == [(v.name, v.type) for v in proto.graph.input]
    assert [(v.name, v.type) for v in fused.graph.output] == [(v.name, v.type) for v in proto.graph.output]
    assert [node.op_type for node in fused.graph.node].count("GroupQueryAttention") == 1
    _compare(proto, fused, 1e-5 if element == TensorProto.FLOAT else 5e-3, batch=2, new=5, past=3)


@pytest.mark.parametrize("joined", ["split", "flat"])
def test_heads_that_are_joined_in_another_way(joined):
    proto = model(Spelling(joined=joined))
    fused = fused_model(proto)
    assert "Softmax" not in [node.op_type for node in fused.graph.node]
    _compare(proto, fused, batch=2, new=3, past=2)


@pytest.mark.parametrize("past", range(9, 15))
def test_angles_that_change_with_the_length_stay_those_of_the_graph(past):
    """Field report T09: LongRoPE takes other frequencies from some length on."""
    proto = model(Spelling(rotary="half", switch=12))
    fused = fused_model(proto)
    assert "Where" in [node.op_type for node in fused.graph.node]
    _compare(proto, fused, batch=1, new=1, past=past)


def test_tokens_on_a_past_see_what_lies_before_them():
    """Field report T06: the mask's corner is at the end of the keys."""
    proto = model(Spelling())
    _compare(proto, fused_model(proto), batch=1, new=3, past=5)


def test_queries_that_see_no_key_give_zeros():
    """Field report T05: not NaN, and nothing of it reaches other rows."""
    proto = model(Spelling(cleaned=False))
    given = feeds(proto, batch=2, new=4, past=0)
    given["attention_mask"][0, :2] = 0
    given["attention_mask"][1] = 0
    found, *presents = _session(fused_model(proto)).run(None, given)
    expected, *originals = _session(proto).run(None, given)
    assert np.isnan(expected[0, :2]).all() and np.isnan(expected[1]).all()
    assert (found[0, :2] == 0).all() and (found[1] == 0).all()
    np.testing.assert_allclose(found[0, 2:], expected[0, 2:], atol=1e-6)
    for a, b in zip(presents, originals, strict=True):
        np.testing.assert_array_equal(a, b)
