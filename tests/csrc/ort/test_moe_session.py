"""The MoE node in ONNX Runtime against float64: types, ranks, windows inline and in data files, every level."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.activations import ACTIVATIONS
from support.elements import ELEMENTS
from support.layouts import GATE_UP, SINGLE
from support.levels import every_level
from support.moe_native import assert_within, expected
from support.moe_session import create_session, external_windows, model_for, moe_model, run_session
from support.moe_tokens import make_tokens, random_ids, without_ids, without_weights
from support.moe_weights import MoeSpec, make_weights

kinds = st.sampled_from(ELEMENTS)
window_lists = st.lists(kinds, min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    experts=st.integers(1, 6),
    hidden=st.integers(1, 90),
    intermediate=st.integers(1, 90),
    gate_up=st.sampled_from(GATE_UP),
    down=st.sampled_from(SINGLE),
    windows=window_lists,
    down_windows=st.one_of(st.none(), window_lists),
    activation=st.sampled_from(ACTIVATIONS),
    bias=st.booleans(),
    weight_on=st.sampled_from(["output", "input"]),
    k=st.integers(1, 4),
    lead=st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 5), st.integers(1, 9))),
    x_type=kinds,
    routing_type=kinds,
    ids_type=st.sampled_from([np.int32, np.int64]),
    threads=st.sampled_from([1, 2]),
    gates=st.booleans(),
    omit=st.frozensets(st.sampled_from(["ids", "weights"])),
    addend=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_node(
    experts, hidden, intermediate, gate_up, down, windows, down_windows, activation, bias, weight_on, k, lead, x_type,
    routing_type, ids_type, threads, gates, omit, addend, seed,
):  # fmt: skip
    spec = MoeSpec(
        experts, hidden, intermediate, gate_up, down, windows, down_windows, bias=bias, activation=activation,
        extra={"weight_on": weight_on},
        sigmoid_gates=frozenset(range(0, experts, 2)) if gates and weight_on == "output" else None,
    )  # fmt: skip
    weights = make_weights(spec, seed)
    count, like = int(np.prod(lead)), {"x_type": x_type, "routing_type": routing_type, "addend": addend, "seed": seed}
    if "ids" in omit:
        inputs = without_ids(count, experts, hidden, weights="weights" not in omit, **like)
    else:
        ids = random_ids(count, k, experts, dtype=ids_type, seed=seed, repeats=True)
        inputs = make_tokens(ids, hidden, **like)
        inputs = without_weights(inputs) if "weights" in omit else inputs
    session = create_session(model_for(weights, inputs, rank=len(lead) + 1), threads=threads)
    assert_within(run_session(session, inputs, lead), expected(weights, inputs))


@every_level
@pytest.mark.parametrize("layout", SINGLE)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_level_can_be_forced(isa, layout, kind, monkeypatch):
    """I02. The variable is read when a session is created."""
    weights = make_weights(MoeSpec(4, 60, 50, layout, layout, windows=(kind,)))
    inputs = make_tokens(random_ids(20, 2, 4), 60)
    monkeypatch.setenv("ORT_HINA_ISA", isa)
    session = create_session(model_for(weights, inputs), threads=2)
    monkeypatch.setenv("ORT_HINA_ISA", "nonsense")
    assert_within(run_session(session, inputs), expected(weights, inputs, isa))


@pytest.mark.parametrize("offset", [0, 1, 4096, 70_001])
@pytest.mark.parametrize("kinds", [("float",), ("float", "bfloat16"), ("float16", "float16", "float")])
def test_windows_of_data_files(tmp_path, offset, kinds):
    """At any offset, aligned to nothing; one file for each window."""
    weights = make_weights(MoeSpec(5, 60, 50, windows=kinds, bias=True))
    inputs = make_tokens(random_ids(9, 2, 5), 60)
    path = tmp_path / "moe.onnx"
    onnx.save(model_for(weights, inputs, initializers=external_windows(weights, tmp_path, offset)), path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.bin")}
    assert len(before) == len(kinds)
    assert_within(run_session(create_session(path), inputs), expected(weights, inputs))
    assert before == {file.name: file.read_bytes() for file in tmp_path.glob("*.bin")}


def test_windows_may_overlap(tmp_path):
    """Two windows on one file, the second one a part of the first: gate and up through one, down through the other."""
    weights = make_weights(MoeSpec(3, 40, 30))
    (data, _), = weights.windows
    inputs = make_tokens(random_ids(9, 2, 3), 40)
    whole, = external_windows(weights, tmp_path, offset=5)
    part = onnx.TensorProto()
    part.CopyFrom(whole)
    begin = min(weights.attributes["down_offsets"])
    part.name, part.dims[0] = "part", data.size - begin
    values = {"location": "data0.bin", "offset": str(5 + begin), "length": str(data.size - begin)}
    for entry in part.external_data:
        entry.value = values[entry.key]
    attributes = weights.attributes | {
        "window_types": [onnx.TensorProto.FLOAT] * 2,
        "down_windows": [1, 1, 1],
        "down_offsets": [offset - begin for offset in weights.attributes["down_offsets"]],
    }
    path = tmp_path / "moe.onnx"
    onnx.save(model_for(weights, inputs, attributes=attributes, initializers=[whole, part]), path)
    assert_within(run_session(create_session(path), inputs), expected(weights, inputs))


@pytest.mark.parametrize("name", ["gate_windows", "up_windows", "down_windows"])
def test_absent_window_lists_mean_the_first(name):
    weights = make_weights(MoeSpec(3, 20, 10))
    del weights.attributes[name]
    inputs = make_tokens(random_ids(4, 2, 3), 20)
    assert_within(run_session(create_session(model_for(weights, inputs)), inputs), expected(weights, inputs))


@pytest.mark.parametrize("shape", [(0, 24), (1, 0, 24), (0, 7, 24)])
@pytest.mark.parametrize("rank_known", [True, False])
def test_no_token(shape, rank_known):
    """An empty Y of X's shape, from a session that answers the next call as well."""
    weights = make_weights(MoeSpec(3, 24, 10))
    inputs = make_tokens(random_ids(4, 2, 3), 24)
    session = create_session(model_for(weights, inputs, rank=len(shape) if rank_known else None))
    empty = {
        "X": np.zeros(shape, np.float32),
        "ids": np.zeros((*shape[:-1], 2), np.int64),
        "routing": np.zeros((*shape[:-1], 2), np.float32),
    }
    y, = session.run(None, empty)
    assert y.shape == shape
    assert y.dtype == np.float32
    lead = (4,) if len(shape) == 2 else (2, 2)
    assert_within(run_session(session, inputs, lead), expected(weights, inputs))


@pytest.mark.parametrize("omit", [["ids"], ["weights"], ["ids", "weights"]])
@pytest.mark.parametrize("addend", [None, onnx.TensorProto.FLOAT])
def test_the_shape_of_y_is_known_when_inputs_are_left_out(omit, addend):
    """Not before ONNX Runtime 1.24, which crashes if it is told how to infer it."""
    session = create_session(moe_model(make_weights(MoeSpec(3, 24, 10)), rank=3, omit=omit, addend_type=addend))
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    assert session.get_outputs()[0].shape == (["batch", "sequence", 24] if version >= (1, 24) else [])


@pytest.mark.parametrize("lead", [(6,), (2, 3)])
@pytest.mark.parametrize("ids_lead", [(6,), (2, 3), (3, 2)])
@pytest.mark.parametrize("routing_lead", [(6,), (2, 3), (1, 6)])
def test_only_the_number_of_tokens_must_agree(lead, ids_lead, routing_lead):
    """Routers often work on (T, E) where X is still (B, S, H)."""
    weights = make_weights(MoeSpec(3, 24, 10))
    inputs = make_tokens(random_ids(6, 2, 3), 24)
    session = create_session(model_for(weights, inputs, rank=None))
    y, = session.run(None, {
        "X": inputs.x.astype(np.float32).reshape(*lead, 24),
        "ids": inputs.ids.reshape(*ids_lead, 2),
        "routing": inputs.routing.astype(np.float32).reshape(*routing_lead, 2),
    })  # fmt: skip
    assert y.shape == (*lead, 24)
    assert_within(y.reshape(6, 24), expected(weights, inputs))
