"""Attention that is almost what the operator does: whatever is fused of it, it answers what it answered before."""

from __future__ import annotations

import pytest
from support.attention_graphs import Spelling, fuse, model

from ort_hina.graph_passes.attention_layer import AttentionLayer, RefusedAttention

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


def test_heads_that_are_not_repeated_beside_each_other():
    _refused(repeat="tile")
