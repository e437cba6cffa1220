"""The length of the past from the attention mask: where it can be, and what stands in the way."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.attention_graphs import Spelling, feeds, fused_model, model

import ort_hina
from ort_hina.graph_passes.attention_past import count_past_by_mask
from ort_hina.graph_passes.cleanup import remove_unused


def _counted(proto) -> tuple[ir.Model, str | None]:
    fused = ir.serde.deserialize_model(proto)
    reason = count_past_by_mask(fused.graph)
    remove_unused(fused.graph)
    fused.graph.sort()
    return fused, reason


def _with_ids(proto):
    """An input of as many columns as there are new tokens, as models of language have it."""
    proto.graph.input.append(helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "new"]))
    return proto


def _answers(proto, given):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(
        None, {name: array for name, array in given.items() if name in {v.name for v in session.get_inputs()}}
    )


def _adding_length(proto, spelled):
    """An output that depends on the length of the past, read from the shape of its cache."""
    start = {"gather": 0, "part": 2, "whole": 0, "tail": 1}[spelled]
    stop = {"end": 3} if spelled == "part" else {}
    nodes = [helper.make_node("Shape", ["past_key"], ["sizes"], start=start, **stop)]
    if spelled == "gather":
        nodes += [
            helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, np.int64))),
            helper.make_node("Gather", ["sizes", "two"], ["chosen"], axis=0),
        ]
    nodes.append(helper.make_node("Identity", [nodes[-1].output[0]], ["length"]))
    proto.graph.node.extend(nodes)
    proto.graph.output.append(helper.make_tensor_value_info("length", TensorProto.INT64, None))
    return proto


@pytest.mark.parametrize("spelled", ["gather", "part", "whole", "tail"])
def test_what_reads_the_length_gets_it_from_the_mask(spelled):
    proto = _adding_length(_with_ids(fused_model(model(Spelling()))), spelled)
    counted, reason = _counted(proto)
    assert reason is None
    counted = ir.serde.serialize_model(counted)
    given = feeds(proto, batch=2, new=3, past=4)
    for a, b in zip(_answers(proto, given), _answers(counted, given), strict=True):
        np.testing.assert_array_equal(a, b)
    # With longer buffers the mask alone says that there are 4 tokens.
    longer = dict(given)
    for name in ("past_key", "past_value"):
        longer[name] = np.concatenate([given[name], np.full_like(given[name], np.nan)], axis=2)
    expected, *_, length = _answers(proto, given)
    found, present, _, in_buffer = _answers(counted, longer)
    np.testing.assert_array_equal(found, expected)
    assert present.shape[2] == 8
    place = {"gather": ..., "part": 0, "whole": 2, "tail": 1}[spelled]
    assert in_buffer[place] == length[place] == 4


def test_without_an_attention_mask():
    _, reason = _counted(_with_ids(fused_model(model(Spelling(mask="causal")))))
    assert "not known from an attention mask" in reason


def test_without_an_input_of_tokens():
    _, reason = _counted(fused_model(model(Spelling())))
    assert "as many columns as there are new tokens" in reason


@pytest.mark.parametrize(
    ("cache", "text"), [("past_key", "reads the past cache"), ("present_key", "reads the present cache")]
)
def test_something_else_reads_a_cache(cache, text):
    proto = _with_ids(fused_model(model(Spelling())))
    proto.graph.node.append(helper.make_node("ReduceSum", [cache], ["sum"], name="total", keepdims=0))
    proto.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, None))
    _, reason = _counted(proto)
    assert text in reason and "ReduceSum 'total'" in reason


def test_a_length_that_is_an_output_of_the_model():
    proto = _with_ids(fused_model(model(Spelling())))
    proto.graph.node.append(helper.make_node("Shape", ["past_key"], ["length"], name="sizes"))
    proto.graph.output.append(helper.make_tensor_value_info("length", TensorProto.INT64, [4]))
    _, reason = _counted(proto)
    assert reason == "Shape 'sizes' gives the length of the past to the caller of the model"


def test_a_graph_without_caches():
    graph = ir.serde.deserialize_model(_with_ids(model(Spelling()))).graph
    assert "no attention with caches" in count_past_by_mask(graph)
