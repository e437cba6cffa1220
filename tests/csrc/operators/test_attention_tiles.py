"""Attention of bfloat16 in AMX tiles: where they are used, how often, and the tile configuration that is left as it was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import emulator, tile_configuration
from support.attention_native import assert_answers, assert_attends, run_native
from support.attention_reference import AttentionCase, make_case
from support.attention_session import attention_session, feeds_of, run_session
from support.elements import ELEMENTS
from support.levels import EMULATED_AMX, LEVELS

pytestmark = pytest.mark.skipif("amx" not in LEVELS, reason="neither AMX nor an emulator (support/levels.py says why)")
only_counted = pytest.mark.skipif(not EMULATED_AMX, reason="the emulator counts instructions; a CPU does not")

NONE = bytes(64)
ODD = tile_configuration.configuration(rows=3, row_bytes=20)
# A new token against a cache, and the chunk of a prompt.
SHAPES = {"decode": {"queries": 1, "past": 1300}, "prefill": {"queries": 40, "past": 100}}
every_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(autouse=True)
def no_configuration_stays() -> Iterator[None]:
    yield
    tile_configuration.load(NONE)  # palette 0 releases the tiles


def case_of(shape: str, kind: str = "bfloat16", group: int = 8) -> AttentionCase:
    return make_case(np.random.default_rng(0), kv_heads=2, group=group, size=64, kind=kind, **SHAPES[shape])


@every_shape
@pytest.mark.parametrize("before", [NONE, ODD], ids=["none", "odd"])
@pytest.mark.parametrize("threads", [1, 4])
def test_the_configuration_is_as_before(shape, before, threads):
    tile_configuration.load(before)
    assert_attends(case_of(shape), isa="amx", threads=threads)
    assert tile_configuration.stored() == before


@every_shape
def test_on_the_threads_of_onnxruntime(shape, monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", "amx")
    case = case_of(shape)
    feeds = feeds_of(case)
    session = attention_session(case, feeds, threads=2)
    tile_configuration.load(ODD)
    for _ in range(3):
        output, keys, values = run_session(session, feeds, shared=False)
        output = output.reshape(*case.query.shape[:3], case.value.shape[3])
        assert_answers(case, (output, keys, values), isa="amx")
        assert tile_configuration.stored() == ODD


@only_counted
@every_shape
@pytest.mark.parametrize("kind", ELEMENTS)
def test_tiles_are_used_for_bfloat16_alone(shape, kind):
    emulator.reset()
    run_native(case_of(shape, kind), isa="amx", threads=3)
    counts = emulator.counts()
    assert (counts["TDPBF16PS"] > 0) == (kind == "bfloat16")
    assert 1 <= counts["STTILECFG"] <= 3


@only_counted
def test_a_few_rows_use_no_tiles():
    for group, used in ((7, False), (8, True)):
        emulator.reset()
        run_native(case_of("decode", group=group), isa="amx")
        assert (emulator.counts()["TDPBF16PS"] > 0) == used


@only_counted
@every_shape
def test_levels_below_leave_tiles_alone(shape):
    for isa in LEVELS[1:]:
        emulator.reset()
        run_native(case_of(shape), isa=isa, threads=2)
        assert not any(emulator.counts().values())


@only_counted
def test_keys_and_values_of_a_group_are_multiplied_once():
    """2 heads of 1301 keys of 64, 8 rows: 2 steps of 32 elements for each 16 keys, 4 tiles of columns for each 32 keys. The
    parts of 650 and 651 keys end in blocks that are filled up."""
    emulator.reset()
    run_native(case_of("decode"), isa="amx")
    blocks = [min(128, keys - first) for keys in (650, 651) for first in range(0, keys, 128)]
    products = sum(-(-keys // 16) * 2 + -(-keys // 32) * 4 for keys in blocks)
    assert emulator.counts()["TDPBF16PS"] == 2 * products
