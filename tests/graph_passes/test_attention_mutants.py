"""Attention that is almost what the operator does: whatever is fused of it, it answers what it answered before."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from support.attention_graphs import Spelling, fuse, model

from ort_hina.graph_passes import attention_match
from ort_hina.graph_passes.attention_layer import AttentionLayer, RefusedAttention
from ort_hina.graph_passes.shapes import Shapes

STAYS = "the mask stays in the graph"


def _fused(**spelling) -> AttentionLayer:
    fused = fuse(model(Spelling(**spelling)))
    assert isinstance(fused.layer, AttentionLayer), fused.layer
    assert fused.verdict.state == "verified", fused.verdict
    return fused.layer


def _refused(**spelling) -> str:
    layer = fuse(model(Spelling(**spelling))).layer
    assert isinstance(layer, RefusedAttention), layer
    return layer.reason


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"compare": "Less"}, "not causal"),
        ({"compare": "GreaterOrEqual"}, "not causal"),
        ({"ahead": 1}, "not causal"),
        ({"ahead": -1}, "not causal"),
        ({"shifted": 1}, "counted across axes"),
        ({"join": "Or"}, "not causal"),
        ({"hidden": -1.0}, "adds -1 to scores"),
        ({"hidden": 0.0}, "not causal"),
        ({"mask": "given"}, "depends on 'bias'"),
        ({"mask": "triangle", "ahead": 1}, "not causal"),
        ({"mask": "gather_nd", "shifted": 1}, "at the position of the key"),
    ],
)
def test_masks_that_are_not_proved_stay(wrong, reason):
    layer = _fused(**wrong)
    assert layer.attention_bias is not None and layer.attention_mask is None and not layer.causal
    (note,) = layer.notes
    assert note.startswith(STAYS) and reason in note


def test_a_mask_with_one_row_for_all_queries():
    assert [node.op_type for node in _fused(mask="given", mask_rows=1).before][-1] == "Expand"


def test_a_boolean_mask_that_is_not_proved_becomes_a_bias():
    layer = _fused(mask="boolean", ahead=1)
    assert layer.attention_bias is not None and [node.op_type for node in layer.before][-1] == "Where"


@pytest.mark.parametrize("mask", ["gather", "gather_nd", "boolean"])
def test_a_mask_that_is_cut_to_the_keys_does_not_wait_for_them(mask):
    assert _fused(mask=mask, sliced=True).attention_mask is not None
    layer = _fused(mask=mask, sliced=True, ahead=1)
    assert layer.attention_bias is not None and layer.before[-1].op_type == "Where"


def test_scores_that_a_mask_replaces_by_a_small_number():
    assert "replaces scores" in _refused(mask="boolean", hidden=-1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rotary": "half", "negated": False},
        {"rotary": "halves", "negated": False},
        {"rotary": "interleaved", "negated": False},
        {"rotary": "half", "equal_halves": False},
        {"rotary": "half", "other_key_angles": True},
        {"norm": "head", "norm_axis": 1},
        {"norm": "head", "unequal_epsilons": True},
    ],
)
def test_what_is_no_rotation_or_norm_stays_before_the_node(wrong):
    layer = _fused(**wrong)
    assert layer.query.name != "q" and layer.cos_cache is None and layer.q_norm_weight is None


def test_weights_that_are_an_output():
    assert "weights that are an output of the model" in _refused(extra_output="weights")


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_over_another_axis(axis):
    assert "does not run over the keys" in _refused(softmax_axis=axis)


def test_a_softmax_that_says_no_axis_is_over_the_last_one_since_opset_13():
    for version, is_understood in ((18, True), (13, True), (12, False)):
        proto = model(Spelling())
        proto.opset_import[0].version = version
        (softmax,) = (node for node in proto.graph.node if node.op_type == "Softmax")
        del softmax.attribute[:]
        found = ir.serde.deserialize_model(proto)
        (layer,) = attention_match.find(found.graph, Shapes())
        assert isinstance(layer, AttentionLayer) == is_understood, layer


def test_a_sink_for_each_token_is_none_for_each_head():
    """With as many tokens as heads the graph runs."""
    assert "not one constant for each head" in _refused(sinks=True, sink_axis=2)


def test_a_cap_that_is_negative():
    assert "no soft cap" in _refused(softcap=-2.0)


def test_heads_that_are_not_repeated_beside_each_other():
    _refused(repeat="tile")
