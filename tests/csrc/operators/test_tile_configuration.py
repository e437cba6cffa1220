"""I05. AMX's tile configuration is left as it was found: MLAS, for one, sets its own once in a thread's life."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import emulator, tile_configuration
from support.levels import EMULATED_AMX, LEVELS
from support.moe_native import NativeMoe, assert_within, expected
from support.moe_session import create_session, model_for, run_session
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

pytestmark = pytest.mark.skipif("amx" not in LEVELS, reason="neither AMX nor an emulator (support/levels.py says why)")
only_counted = pytest.mark.skipif(not EMULATED_AMX, reason="the emulator counts instructions; a CPU does not")

NONE = bytes(64)
ODD = tile_configuration.configuration(rows=3, row_bytes=20)
# Few tokens, a tile and a part, several tiles; 700 tokens are sorted by several threads.
COUNTS = (1, 17, 100, 700)


@pytest.fixture(params=["nk", "kn"])
def node(request) -> tuple:
    weights = make_weights(MoeSpec(4, 48, 40, request.param, request.param, windows=("bfloat16",)))
    return weights, NativeMoe(weights, "amx")


@pytest.fixture(autouse=True)
def no_configuration_stays() -> Iterator[None]:
    yield
    tile_configuration.load(NONE)  # palette 0 releases the tiles


def tokens(count: int):
    return make_tokens(random_ids(count, 3, 4), 48)


@pytest.mark.parametrize("before", [NONE, ODD], ids=["none", "odd"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("threads", [1, 4])
def test_is_as_before(node, before, count, threads):
    weights, moe = node
    inputs = tokens(count)
    tile_configuration.load(before)
    assert_within(moe.run(inputs, threads), expected(weights, inputs, "amx"))
    assert tile_configuration.stored() == before


def test_is_as_before_where_a_call_fails(node):
    _, moe = node
    inputs = tokens(700)
    inputs.ids[600, 1] = 4
    tile_configuration.load(ODD)
    for threads in (1, 4):
        with pytest.raises(ValueError, match="expected an id in"):
            moe.run(inputs, threads)
        assert tile_configuration.stored() == ODD


def test_in_a_thread_that_is_younger_than_the_library(node):
    """Its tiles have never been used: on a CPU, the first use asks the kernel for room."""
    weights, moe = node
    inputs = tokens(17)

    def call() -> bytes:
        assert_within(moe.run(inputs), expected(weights, inputs, "amx"))
        return tile_configuration.stored()

    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(call).result() == NONE


def test_with_another_user_of_tiles_in_between(node):
    """200 times, as with a library that set its tiles once and relies on them ever since."""
    weights, moe = node
    inputs = tokens(17)
    bits = moe.run(inputs)
    tile_configuration.load(ODD)
    for _ in range(200):
        np.testing.assert_array_equal(moe.run(inputs), bits)
        assert tile_configuration.stored() == ODD


@only_counted
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("threads", [1, 4])
def test_every_participant_saves_and_restores(node, count, threads):
    """Once each. Kernels load configurations of their own in between (LDTILECFG), and none was set before (TILERELEASE)."""
    _, moe = node
    inputs = tokens(count)
    emulator.reset()
    moe.run(inputs, threads)
    counts = emulator.counts()
    assert counts["TDPBF16PS"] > 0 or count == 1  # a single token may be cheaper without tiles
    assert counts["STTILECFG"] == counts["TILERELEASE"]
    assert 1 <= counts["STTILECFG"] <= threads
    assert threads == 1 or count == 1 or counts["STTILECFG"] == threads


@only_counted
def test_levels_below_leave_tiles_alone():
    for isa in LEVELS[1:]:
        weights = make_weights(MoeSpec(4, 48, 40, windows=("bfloat16",)))
        emulator.reset()
        NativeMoe(weights, isa).run(tokens(40), 2)
        assert not any(emulator.counts().values())


@only_counted
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_float_weights_use_tiles_on_request_only(kind):
    moe = {on: NativeMoe(make_weights(MoeSpec(4, 48, 40, windows=(kind,))), "amx", bf16_compute=on) for on in (False, True)}
    for on, multiplied in ((False, False), (True, True)):
        emulator.reset()
        moe[on].run(tokens(40), 2)
        assert (emulator.counts()["TDPBF16PS"] > 0) == multiplied


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("threads", [1, 3])
def test_on_the_threads_of_onnxruntime(layout, threads, monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "amx")
    weights = make_weights(MoeSpec(4, 48, 40, layout, layout, windows=("bfloat16",)))
    inputs = tokens(100)
    session = create_session(model_for(weights, inputs), threads=threads, entry=str(threads))
    tile_configuration.load(ODD)
    for _ in range(5):
        assert_within(run_session(session, inputs), expected(weights, inputs, "amx"))
        assert tile_configuration.stored() == ODD
