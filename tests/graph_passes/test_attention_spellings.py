"""Attention in every spelling that is known here: understood whole, and equal to what it was when both are run."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from support.attention_graphs import LOWEST, Spelling, fuse, model

from ort_hina.graph_passes.attention_layer import AttentionLayer


def _fused(**spelling) -> AttentionLayer:
    fused = fuse(model(Spelling(**spelling)))
    assert isinstance(fused.layer, AttentionLayer), fused.layer
    assert fused.verdict.state == "verified", fused.verdict
    return fused.layer


def test_what_is_absorbed():
    layer = _fused()
    assert (layer.query.name, layer.key.name, layer.value.name) == ("q", "k", "v")
    assert (layer.past_key.name, layer.past_value.name) == ("past_key", "past_value")
    assert (layer.present_key.name, layer.present_value.name, layer.output.name) == (
        "present_key",
        "present_value",
        "output",
    )
    assert layer.attention_mask.name == "attention_mask" and layer.causal and layer.attention_bias is None
    assert (layer.num_heads, layer.kv_num_heads, layer.head_size, layer.value_head_size) == (4, 2, 8, 8)
    assert layer.scale == pytest.approx(0.25) and not layer.before


@pytest.mark.parametrize("hidden", [-np.inf, LOWEST])
@pytest.mark.parametrize("mask", ["gather", "gather_nd", "triangle", "boolean"])
def test_masks(mask, hidden):
    layer = _fused(mask=mask, hidden=hidden)
    assert layer.attention_mask is not None and layer.attention_bias is None and layer.local_window_size == -1


@pytest.mark.parametrize("window", [1, 3, 64])
@pytest.mark.parametrize("mask", ["gather", "gather_nd", "causal"])
def test_windows(mask, window):
    assert _fused(mask=mask, window=window).local_window_size == window


def test_a_mask_of_positions_alone_needs_no_attention_mask():
    layer = _fused(mask="causal")
    assert layer.attention_mask is None and layer.causal


def test_without_a_mask_every_query_sees_all_keys():
    layer = _fused(mask="none")
    assert not layer.causal and layer.attention_mask is None


@pytest.mark.parametrize("scale", ["both", "scores", "query", "divided"])
@pytest.mark.parametrize("factor", [0.25, 0.1])
def test_scales(scale, factor):
    assert _fused(scale=scale, factor=factor).scale == pytest.approx(factor, rel=1e-6)


def test_a_scale_that_is_computed_from_a_shape():
    assert _fused(scale="computed", size=32).scale == pytest.approx(32**-0.5, rel=1e-6)


@pytest.mark.parametrize("rotary", ["half", "halves", "interleaved", "partial"])
def test_rotations(rotary):
    layer = _fused(rotary=rotary)
    assert (layer.query.name, layer.key.name) == ("q", "k")
    assert layer.cos_cache is not None and layer.rotary_interleaved == (rotary == "interleaved")


def test_layers_share_what_cuts_the_angles(tmp_path):
    """The second half, which repeats the first, is cut off by one node for the cosine and one for the sine."""
    layer = _fused(rotary="half")
    assert sum(node.op_type == "Slice" for node in layer.before) == 2


@pytest.mark.parametrize("rotary", ["", "half", "interleaved"])
@pytest.mark.parametrize(("norm", "size"), [("head", 8), ("tokens", 32)])
def test_norms_before_the_rotation(norm, size, rotary):
    layer = _fused(norm=norm, rotary=rotary)
    assert layer.query.name == "q" and layer.q_norm_weight.const_value.size == size
    assert layer.qk_norm_epsilon == pytest.approx(1e-5)


def test_a_norm_behind_the_rotation_leaves_the_rotation_in_the_graph():
    layer = _fused(norm="after", rotary="half")
    assert layer.q_norm_weight is not None and layer.cos_cache is None and layer.query.name != "q"


def test_sinks():
    layer = _fused(sinks=True)
    assert layer.head_sink is not None


@pytest.mark.parametrize("scale", ["both", "scores"])
def test_soft_caps(scale):
    layer = _fused(softcap=2.0, scale=scale)
    assert layer.softcap == 2.0 and layer.scale == pytest.approx(0.25)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 3)])
def test_groups(heads, kv_heads):
    layer = _fused(heads=heads, kv_heads=kv_heads)
    assert (layer.num_heads, layer.kv_num_heads) == (heads, kv_heads)


def test_values_of_another_size():
    """Field report D09."""
    layer = _fused(heads=4, kv_heads=4, size=12, value_size=8)
    assert (layer.head_size, layer.value_head_size) == (12, 8)


def test_keys_through_three_dimensions():
    _fused(keys="flat")


def test_half_precision():
    assert _fused(element=TensorProto.FLOAT16, rotary="half", norm="head").dtype.name == "FLOAT16"


def test_everything_at_once():
    layer = _fused(heads=8, window=5, rotary="partial", norm="head", sinks=True, softcap=3.0, mask="gather_nd")
    assert layer.query.name == "q" and layer.local_window_size == 5 and layer.head_sink is not None
