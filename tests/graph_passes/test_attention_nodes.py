"""Attention that real exports hold as one node already, and graphs without any."""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from support import fixtures
from support.prompts import greedy

import ort_hina
from ort_hina.graph_passes import attention_nodes
from ort_hina.graph_passes.attention_layer import AttentionLayer, RefusedAttention
from ort_hina.graph_passes.attention_node import make_attention_node, put_attention_node
from ort_hina.graph_passes.cleanup import remove_unused
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.models.onnx_cases import open_session
from ort_hina.verify_attention import verify_attention

# By fixture: layers that are read, and why others are not.
FOUND = {
    "gpt_oss-genai": (1, ["a cache that keeps the window alone is not supported"]),
    "granitemoehybrid-genai": (2, []),
    "lfm2_moe-genai": (1, []),
    "lfm2_moe-genai-int4": (1, []),
    "qwen3_moe-optimum": (0, []),
    "qwen3_moe-torch_dynamo-op23": (2, []),
}


def read(name: str):
    model = ir.from_proto(fixtures.load(name))
    return model, attention_nodes.find(model.graph, Shapes())


@pytest.mark.parametrize("name", FOUND)
def test_what_exports_hold(name):
    _, found = read(name)
    layers = [layer for layer in found if isinstance(layer, AttentionLayer)]
    reasons = [layer.reason for layer in found if isinstance(layer, RefusedAttention)]
    count, expected = FOUND[name]
    assert len(layers) == count and len(reasons) == len(expected)
    assert all(part in reason for part, reason in zip(expected, reasons, strict=True)), reasons
    assert all(layer.output.producer() in layer.nodes for layer in layers)


@pytest.mark.parametrize("name", ["gpt_oss-genai", "lfm2_moe-genai"])
def test_the_converted_model_says_the_same(name, tmp_path):
    model, found = read(name)
    original = tmp_path / "original.onnx"
    onnx.save(fixtures.load(name), original)
    for layer in found:
        if isinstance(layer, AttentionLayer):
            put_attention_node(model.graph, layer, make_attention_node(layer))
    remove_unused(model.graph)
    converted = tmp_path / "converted.onnx"
    onnx.save(ir.to_proto(model), converted)
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    sizes = fixtures.index()[name]["state_sizes"]
    expected, answers = (
        greedy(session, 7, 24, sizes) for session in (open_session(original), open_session(converted, options))
    )
    assert len(set(expected)) > 3 and answers == expected


@pytest.mark.parametrize("name", ["gpt_oss-genai", "lfm2_moe-genai", "qwen3_moe-torch_dynamo-op23"])
def test_verification_runs_such_nodes(name, tmp_path):
    """Beside the original, and notices a mistake."""
    model = ir.from_proto(fixtures.load(name))
    shapes = Shapes()
    layer = next(found for found in attention_nodes.find(model.graph, shapes) if isinstance(found, AttentionLayer))
    verdicts = [
        verify_attention(tried, make_attention_node(tried), model, tmp_path, shapes=shapes)
        for tried in (layer, dataclasses.replace(layer, scale=0.25 * layer.scale), dataclasses.replace(layer, softcap=0.5))
    ]
    assert [verdict.state for verdict in verdicts] == ["verified", "failed", "failed"], verdicts
