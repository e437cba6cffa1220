"""Verification sees every mistake that a node could be made with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.attention_graphs import Spelling, model

from ort_hina.graph_passes import attention_match
from ort_hina.graph_passes.attention_node import make_attention_node
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.verify_attention import tolerance, verify_attention

WHOLE = Spelling(heads=4, rotary="half", norm="head", sinks=True, window=6)


def _verdict(change, spelling=WHOLE):
    source = ir.serde.deserialize_model(model(spelling))
    shapes = Shapes()
    (layer,) = attention_match.find(source.graph, shapes)
    node = make_attention_node(dataclasses.replace(layer, **change(layer)))
    return verify_attention(layer, node, source, Path(), shapes=shapes)


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_what_is_right_is_verified(element):
    verdict = _verdict(lambda layer: {}, dataclasses.replace(WHOLE, element=element))
    assert verdict.state == "verified" and verdict.difference < verdict.tolerance / 10


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: {"scale": layer.scale * 1.25},
        lambda layer: {"local_window_size": 7},
        lambda layer: {"local_window_size": -1},
        lambda layer: {"attention_mask": None},
        lambda layer: {"head_sink": None},
        lambda layer: {"softcap": 1.0},
        lambda layer: {"causal": False, "local_window_size": -1},
        lambda layer: {"rotary_interleaved": True},
        lambda layer: {"cos_cache": layer.sin_cache, "sin_cache": layer.cos_cache},
        lambda layer: {"cos_cache": None, "sin_cache": None},
        lambda layer: {"q_norm_weight": layer.k_norm_weight},
        lambda layer: {"q_norm_weight": None},
        lambda layer: {"key": layer.value, "value": layer.key},
        lambda layer: {"past_key": layer.past_value, "past_value": layer.past_key},
    ],
)
def test_what_is_wrong_fails(change, element):
    verdict = _verdict(change, dataclasses.replace(WHOLE, element=element))
    assert verdict.state == "failed" and not verdict.allows_fusing, verdict


def test_a_mask_that_shows_something_else_fails():
    """The second look at what was proved: here the layer says that its window is another."""
    source = ir.serde.deserialize_model(model(Spelling(window=3)))
    shapes = Shapes()
    (layer,) = attention_match.find(source.graph, shapes)
    wrong = dataclasses.replace(layer, local_window_size=4)
    verdict = verify_attention(wrong, make_attention_node(wrong), source, Path(), shapes=shapes)
    assert verdict.state == "failed" and "does not show" in verdict.detail


def test_a_node_that_does_not_run_fails():
    verdict = _verdict(lambda layer: {"num_heads": 3})
    assert verdict.state == "failed" and "does not run" in verdict.detail


def test_tolerances():
    assert tolerance(ir.DataType.FLOAT) == 1e-4 and 0.01 < tolerance(ir.DataType.FLOAT16) < 0.05
