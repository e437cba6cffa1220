"""Masks of real exports are proved, and what the proof says is what the graph computes."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest
from support import fixtures
from support.attention_graphs import Spelling, model

from ort_hina.graph_passes import attention_match
from ort_hina.graph_passes.attention_layer import AttentionLayer
from ort_hina.graph_passes.attention_mask import hides_rows_without_keys, new_tensors, prove
from ort_hina.graph_passes.formulas import conditions
from ort_hina.graph_passes.shapes import Shapes

# Its fixtures have windows in every second layer.
WINDOW = {"gpt_oss": 8}


@pytest.mark.parametrize(
    "name",
    ["qwen3_moe-optimum", "olmoe-optimum_custom", "gpt_oss-optimum", "gpt_oss-torch_dynamo", "mixtral-transformers_onnx"],
)
def test_masks_of_exports(name):
    graph = ir.serde.deserialize_model(fixtures.load(name)).graph
    layers = attention_match.find(graph, Shapes())
    assert len(layers) == 2 and all(isinstance(layer, AttentionLayer) for layer in layers)
    assert all(layer.attention_mask.name == "attention_mask" and layer.attention_bias is None for layer in layers)
    window = WINDOW.get(fixtures.index()[name]["family"], -1)
    assert {layer.local_window_size for layer in layers} == {window, -1}


def test_a_row_is_hidden_only_where_the_whole_row_is():
    """What sets the output of rows without keys to 0 has to count the keys of this very mask."""
    graph = ir.serde.deserialize_model(fixtures.load("mixtral-transformers_onnx")).graph
    (layer, _) = attention_match.find(graph, Shapes())
    tensors = new_tensors(graph)
    proof = prove(tensors, layer.dropped_mask)
    condition = next(n for n in graph if n.op_type == "Less" and n.inputs[0].producer().op_type == "ReduceSum").outputs[0]
    assert hides_rows_without_keys(tensors, condition, proof)
    other = dataclasses.replace(proof, visible=next(iter(conditions(proof.visible))))
    assert not hides_rows_without_keys(tensors, condition, other)


def test_a_width_that_is_a_sum_is_counted_in_totals():
    graph = ir.serde.deserialize_model(model(Spelling())).graph
    tensors = new_tensors(graph)
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    assert tensors.sizes(mask)[1].name == "total"
    past = next(value for value in graph.inputs if value.name == "past_key")
    assert str(tensors.sizes(past)[2]) == "-1*new + total"
