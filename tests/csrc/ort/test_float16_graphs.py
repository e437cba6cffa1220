"""MoE in float16 graphs. On CPUs without float16 kernels for its neighbours ONNX Runtime turns the whole chain to float32:
it casts every float16 input of the node, constants too, so a window must not be one."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from support.elements import ELEMENTS
from support.moe_among_operators import doubled, twice, with_doubled
from support.moe_native import assert_within, expected
from support.moe_session import create_session, external_windows, model_for, run_session
from support.moe_tokens import MoeTokens, make_tokens, random_ids, without_ids
from support.moe_weights import MoeSpec, make_weights

from ort_hina.demo import memory

HIDDEN, EXPERTS = 40, 3
OPTIMISATION_LEVELS = list(onnxruntime.GraphOptimizationLevel.__members__.values())
every_optimisation_level = pytest.mark.parametrize("optimise", OPTIMISATION_LEVELS, ids=lambda level: level.name)


def float16_tokens(routed: bool, **arguments) -> MoeTokens:
    if routed:
        return make_tokens(random_ids(9, 2, EXPERTS), HIDDEN, x_type="float16", **arguments)
    return without_ids(9, EXPERTS, HIDDEN, x_type="float16", **arguments)


@every_optimisation_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("routed", [True, False], ids=["ids", "no ids"])
@pytest.mark.parametrize("addend", [True, False], ids=["addend", "no addend"])
def test_between_operators_without_float16_kernels(optimise, kind, routed, addend):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 30, windows=(kind, "float16"), bias=True))
    tokens = float16_tokens(routed, addend=addend, routing_type="float16")
    session = create_session(doubled(model_for(weights, tokens)), optimise=optimise)
    assert_within(run_session(session, tokens), twice(expected(weights, with_doubled(tokens))))


@every_optimisation_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("routed", [True, False], ids=["ids", "no ids"])
def test_at_both_ends_of_the_graph(optimise, kind, routed):
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 30, windows=(kind,)))
    tokens = float16_tokens(routed)
    session = create_session(model_for(weights, tokens), optimise=optimise)
    assert_within(run_session(session, tokens), expected(weights, tokens))


WINDOW_BYTES = 128 << 20


@every_optimisation_level
@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("x_type", ["float", "float16"])
def test_a_window_of_a_data_file_is_not_copied(tmp_path, optimise, kind, x_type):
    """It is 128 MB (of a sparse file), and the session must hold less than a quarter of that for itself."""
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 30, windows=(kind,)))
    tokens = make_tokens(random_ids(9, 2, EXPERTS), HIDDEN, x_type=x_type)
    path = tmp_path / "moe.onnx"
    window = grown(external_windows(weights, tmp_path, offset=4096)[0], tmp_path)
    onnx.save(doubled(model_for(weights, tokens, initializers=[window])), path)

    before = memory.private_now()
    session = create_session(path, optimise=optimise)
    found = run_session(session, tokens)
    grew = memory.private_now() - before

    assert grew < WINDOW_BYTES // 4
    assert_within(found, twice(expected(weights, with_doubled(tokens))))


def grown(window: onnx.TensorProto, folder: Path) -> onnx.TensorProto:
    """The same window, `WINDOW_BYTES` long: it begins where it did."""
    place = {entry.key: entry for entry in window.external_data}
    with open(folder / place["location"].value, "r+b") as file:
        file.truncate(int(place["offset"].value) + WINDOW_BYTES)
    place["length"].value = str(WINDOW_BYTES)
    window.dims[0] = WINDOW_BYTES
    return window
