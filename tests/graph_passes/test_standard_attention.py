"""ONNX's Attention beside the node of ort_hina that takes its place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from support.attention_node_graphs import AttentionGraph, allowed, make_node

from ort_hina.graph_passes import attention_nodes
from ort_hina.graph_passes.attention_node import make_attention_node
from ort_hina.graph_passes.shapes import Shapes
from ort_hina.verify_attention import verify_attention

NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ["Y", "present_key", "present_value"]
BATCH, HEADS, KV_HEADS, SIZE, VALUE_SIZE = 2, 4, 2, 16, 8


def attention(
    seed: int = 0, *, queries: int = 3, past: int | None = 5, rank: int = 4, mask: tuple | None = None, opset: int = 24,
    kind: type = np.float32, mask_kind: type = np.bool_, outputs: int = 3, **attributes,
) -> AttentionGraph:  # fmt: skip
    """An Attention node, and of rank 4 the nodes that merge its heads, as exporters write them.

    Args:
        past: keys before the new tokens; None: there is no past input.
        mask: its shape, with "B", "S" and "T" for sequences, new tokens and keys; another name is only that.
    """
    random = np.random.default_rng(seed)
    total = queries + (past or 0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(kind)

    feeds, shapes = {}, {}
    for name, heads, size in (("Q", HEADS, SIZE), ("K", KV_HEADS, SIZE), ("V", KV_HEADS, VALUE_SIZE)):
        feeds[name] = normal(BATCH, heads, queries, size)
        shapes[name] = ["B", heads, "S", size]
        if rank == 3:
            feeds[name] = feeds[name].swapaxes(1, 2).reshape(BATCH, queries, -1)
            shapes[name] = ["B", "S", heads * size]
    if past is not None:
        for name, size in (("past_key", SIZE), ("past_value", VALUE_SIZE)):
            feeds[name], shapes[name] = normal(BATCH, KV_HEADS, past, size), ["B", KV_HEADS, "P", size]
    keys = "S" if past is None else "P + S"
    if mask is not None:
        sizes = {"B": BATCH, "S": queries, "T": total}
        shape = [size if isinstance(size, int) else sizes.get(size, 1) for size in mask]
        feeds["attn_mask"] = normal(*shape) if mask_kind is not np.bool_ else random.random(shape) < 0.7
        shapes["attn_mask"] = [keys if size == "T" else size for size in mask]
    if rank == 3:
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    node = make_node("Attention", NAMES, feeds, OUTPUTS[:outputs], **attributes)
    nodes, constants, first = [node], {}, "Y"
    if rank == 4:
        nodes.append(helper.make_node("Transpose", ["Y"], ["turned"], name="turn", perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", ["turned", "rows"], ["merged"], name="merge"))
        constants["rows"], first = np.array([0, 0, -1]), "merged"
    shown = {name: ["B", KV_HEADS, keys, size] for name, size in zip(OUTPUTS[1:], (SIZE, VALUE_SIZE), strict=True)}
    return AttentionGraph(nodes, feeds, shapes, [first, *OUTPUTS[1:outputs]], shown, opset, constants)


def heads_apart(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows if rows.ndim == 4 else rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)


def compare(graph: AttentionGraph) -> None:
    expected, found = graph.answers()
    attributes = {a.name: helper.get_attribute_value(a) for a in graph.nodes[0].attribute}
    key, value = (expected.get(f"present_{which}") for which in ("key", "value"))
    if key is None:
        key, value = (heads_apart(graph.feeds[name], KV_HEADS) for name in "KV")
    limit = allowed(heads_apart(graph.feeds["Q"], HEADS), key, value, attributes.get("scale"))
    first = graph.outputs[0]
    assert np.abs(found[first].astype(np.float64) - expected[first]).max() <= limit
    for name in graph.outputs[1:]:
        np.testing.assert_array_equal(found[name], expected[name])


MASKS = [None, ("S", "T"), (1, "S", "T"), (HEADS, "S", "T"), ("B", 1, "S", "T"), (1, HEADS, "S", "T")]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 99),
    step=st.sampled_from([(7, None), (7, 0), (3, 5), (1, 9), (1, 0), (1, 200)]),
    rank=st.sampled_from([3, 4]),
    mask=st.sampled_from(MASKS),
    mask_kind=st.sampled_from([np.bool_, np.float32]),
    opset=st.sampled_from([23, 24]),
    is_causal=st.integers(0, 1),
    scale=st.sampled_from([None, 0.3]),
    softcap=st.sampled_from([None, 2.0]),
)
def test_attributes(seed, step, rank, mask, mask_kind, opset, is_causal, scale, softcap):
    """Rows that see nothing are among them: they are 0."""
    compare(
        attention(
            seed, queries=step[0], past=step[1], rank=rank, mask=mask, mask_kind=mask_kind, opset=opset,
            is_causal=is_causal, scale=scale, softcap=softcap,
        )  # fmt: skip
    )


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("step", [(7, None), (3, 5), (1, 9)])
def test_half(step, rank):
    compare(attention(queries=step[0], past=step[1], rank=rank, kind=np.float16, is_causal=1))


@pytest.mark.parametrize("step", [(7, None), (3, 5), (1, 9)])
@pytest.mark.parametrize("windows", [(2, -1, 1), (0, -1, 1), (3, 0, 0), (-1, 0, 0), (-1, -1, 0), (3, 2, 1)])
def test_windows(windows, step):
    left, right, causal = windows
    compare(
        attention(
            queries=step[0], past=step[1], opset=25, left_window_size=left, right_window_size=right, is_causal=causal
        )
    )


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("rank", [3, 4])
def test_which_keys_a_causal_query_sees(rank, opset):
    """Field report T06: behind 5 old keys, query i of 3 sees keys 0 to 5 + i."""
    graph = attention(rank=rank, opset=opset, is_causal=1)
    graph.feeds["Q"][:] = 0
    values = np.broadcast_to(np.eye(8, VALUE_SIZE, dtype=np.float32), (BATCH, KV_HEADS, 8, VALUE_SIZE))
    graph.feeds["past_value"] = values[:, :, :5].copy()
    new = values[:, :, 5:]
    graph.feeds["V"] = new.copy() if rank == 4 else new.swapaxes(1, 2).reshape(BATCH, 3, -1)
    for answers in graph.answers():
        rows = answers[graph.outputs[0]].reshape(BATCH, 3, HEADS, VALUE_SIZE)
        for i in range(3):
            np.testing.assert_allclose(rows[:, i, :, : 6 + i], 1 / (6 + i), rtol=1e-6)
            assert (rows[:, i, :, 6 + i :] == 0).all()


def test_rows_that_see_nothing_are_zero():
    graph = attention(mask=("B", 1, "S", "T"))
    graph.feeds["attn_mask"][0, 0, 1] = False
    for answers in graph.answers():
        assert (answers["merged"][0, 1] == 0).all() and np.isfinite(answers["merged"]).all()


def joined(**attributes) -> AttentionGraph:
    """The past is joined with the new keys before the node, as PyTorch's exporter writes it."""
    graph = attention(mask=("B", 1, "S", "T"), outputs=1)
    operands = ("Q", "keys", "values", "attn_mask")
    graph.nodes[0] = make_node("Attention", operands, operands, ["Y"], **attributes)
    for place, (past, new, whole) in enumerate((("past_key", "K", "keys"), ("past_value", "V", "values"))):
        graph.nodes.insert(place, helper.make_node("Concat", [past, new], [whole], name=whole, axis=-2))
    for name, size in (("keys", SIZE), ("values", VALUE_SIZE)):
        graph.outputs.append(name)
        graph.output_shapes[name] = ["B", KV_HEADS, "P + S", size]
    return graph


def test_a_past_that_is_joined_before():
    graph = joined()
    (layer,) = graph.found()
    assert [value.name for value in (layer.key, layer.past_key, layer.present_key)] == ["K", "past_key", "keys"]
    assert [value.name for value in (layer.value, layer.past_value, layer.present_value)] == ["V", "past_value", "values"]
    kinds = [node.op_type for node in graph.converted().graph.node]
    assert kinds == ["Constant", "Constant", "Where", "GroupQueryAttention"]
    expected, found = graph.answers()
    np.testing.assert_allclose(found["merged"], expected["merged"], rtol=0, atol=1e-5)
    for name in ("keys", "values"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_layers_share_what_is_made_of_a_mask():
    graph = attention(mask=("S", "T"), outputs=1, past=None)
    for node in list(graph.nodes):
        again = helper.make_node(node.op_type, list(node.input), [f"{node.output[0]}2"], name=f"{node.name}2")
        again.attribute.extend(node.attribute)
        graph.nodes.append(again)
    graph.nodes[4].input[0], graph.nodes[5].input[0] = "Y2", "turned2"
    first, second = graph.found()
    kinds = ["Constant", "Constant", "Where", "Constant", "Unsqueeze"]
    assert [node.op_type for node in first.before] == kinds and first.before == second.before


# ---- what stays


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (attention(mask=("B", 1, "S", "keys")), "as wide as there are keys"),
        (attention(mask=("B", 1, "rows", "T")), "a row for each query"),
        (attention(mask=(1, 1, 1, "T")), "a row for each query"),
        (attention(mask=("some", 1, "S", "T")), "fit the batch and the heads"),
        (attention(mask=("B", 3, "S", "T")), "fit the batch and the heads"),
        (attention(mask=("B", 1, 1, "T"), mask_kind=np.float32), "a row for each query"),
        (attention(scale=0.0), "'scale' is 0"),
        (attention(softmax_precision=11), "'softmax_precision'"),
        (attention(opset=25, left_window_size=3), "beyond the query's own position"),
        (attention(opset=25, right_window_size=2), "beyond the query's own position"),
        (joined(is_causal=1), "cross attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else "graph",
)  # fmt: skip
def test_what_is_not_proved_stays(graph, reason):
    assert reason in graph.reason()


def test_cross_attention_stays():
    graph = attention(past=None)
    graph.shapes["K"][2] = graph.shapes["V"][2] = "others"
    assert "cross attention" in graph.reason()


def test_a_cache_outside_stays():
    graph = attention(past=None)
    graph.feeds["nonpad_kv_seqlen"] = np.full(BATCH, 3)
    graph.nodes[0] = make_node("Attention", NAMES, graph.feeds, OUTPUTS)
    assert "(nonpad_kv_seqlen) is given" in graph.reason()


def test_scores_as_an_output_stay():
    graph = attention()
    graph.nodes[0].output.append("scores")
    graph.outputs.append("scores")
    assert "output 3 (qk_matmul_output) is used" in graph.reason()


@pytest.mark.parametrize("rows", [[0, -1, HEADS], [-1, 0, 1], [BATCH, 0, -1], [0, -1]])
def test_an_output_in_another_form_stays(rows):
    graph = attention()
    graph.constants["rows"] = np.array(rows)
    assert "rows of tokens" in graph.reason()


def test_an_output_that_is_used_besides_stays():
    graph = attention()
    graph.outputs.append("Y")
    assert "rows of tokens" in graph.reason()


def test_numbers_of_heads():
    graph = attention(rank=3)
    del graph.nodes[0].attribute[:]
    assert "numbers of heads are missing" in graph.reason()
    graph = attention()
    graph.shapes["Q"][1] = "heads"
    assert "number of heads could not be worked out" in graph.reason()
    graph.shapes["Q"][1] = 3
    assert "3 heads of queries, expected a multiple of those of keys (2)" in graph.reason()


@pytest.mark.parametrize("mask_kind", [np.bool_, np.float32])
@pytest.mark.parametrize("mask", MASKS)
def test_verification_runs_every_mask(mask, mask_kind, tmp_path):
    graph = attention(mask=mask, mask_kind=mask_kind)
    model, shapes = ir.from_proto(graph.model()), Shapes()
    (layer,) = attention_nodes.find(model.graph, shapes)
    verdict = verify_attention(layer, make_attention_node(layer), model, tmp_path, shapes=shapes)
    assert verdict.state == "verified", verdict
