"""One session, several callers; equal bits whatever the number of threads."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.levels import EMULATED_AMX, every_level
from support.moe_session import create_session, model_for, run_session
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

HIDDEN, EXPERTS = 96, 8


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_eight_callers_of_one_session(layout, threads):
    """Each with its own number of tokens, all at once, ten times over: the bits of serial calls."""
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 72, layout, layout))
    calls = [
        make_tokens(random_ids(count, 2, EXPERTS, seed=count), HIDDEN, seed=count)
        for count in (1, 2, 5, 16, 33, 64, 100, 200)
    ]
    session = create_session(model_for(weights, calls[0]), threads=threads)
    serial = [run_session(session, inputs) for inputs in calls]

    def ten_times(place: int) -> None:
        for _ in range(10):
            np.testing.assert_array_equal(run_session(session, calls[place]), serial[place])

    with ThreadPoolExecutor(len(calls)) as callers:
        for done in [callers.submit(ten_times, place) for place in range(len(calls))]:
            done.result()


def repeats(isa: str, threads: int, tokens: int) -> int:
    if isa == "amx" and EMULATED_AMX:
        return 2
    return 3 if tokens > 100 else 20 if threads == 7 else 5


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_equal_bits_with_any_number_of_threads(isa, layout, kind, monkeypatch):
    """Run after run, with other threads of the pool and other numbers for which the operator plans."""
    monkeypatch.setenv("ORT_HINA_ISA", isa)
    weights = make_weights(MoeSpec(EXPERTS, HIDDEN, 72, layout, layout, windows=(kind,), bias=True))
    calls = [make_tokens(random_ids(count, 3, EXPERTS), HIDDEN) for count in (1, 10, 100, 700)]
    model = model_for(weights, calls[0])
    first = [run_session(create_session(model), inputs) for inputs in calls]
    for threads, entry in [(1, None), (2, "2"), (7, None), (16, "16"), (2, "7"), (1, "16")]:
        session = create_session(model, threads=threads, entry=entry)
        for inputs, bits in zip(calls, first):
            for _ in range(repeats(isa, threads, len(inputs.ids))):
                np.testing.assert_array_equal(run_session(session, inputs), bits)


def test_several_sessions_side_by_side():
    """Each keeps its own weights and settings; closing one leaves the others whole."""
    inputs = make_tokens(random_ids(10, 2, EXPERTS), HIDDEN)
    weights = [make_weights(MoeSpec(EXPERTS, HIDDEN, 40), seed) for seed in range(3)]
    sessions = [create_session(model_for(each, inputs), entry=str(i + 1)) for i, each in enumerate(weights)]
    before = [run_session(session, inputs) for session in sessions]
    assert not np.array_equal(before[1], before[2])
    del sessions[0]
    for session, bits in zip(sessions, before[1:]):
        np.testing.assert_array_equal(run_session(session, inputs), bits)


def test_scratch_is_given_back():
    """60 calls by 4 callers, each with a scratch of some 13 MB: a leak of any of them would show."""
    weights = make_weights(MoeSpec(EXPERTS, 512, 64))
    inputs = make_tokens(random_ids(1500, 2, EXPERTS), 512)
    session = create_session(model_for(weights, inputs))

    def call(_: int) -> None:
        run_session(session, inputs)

    def calls(count: int) -> None:
        with ThreadPoolExecutor(4) as callers:
            list(callers.map(call, range(count)))

    calls(12)
    before = resident_bytes()
    calls(60)
    assert resident_bytes() - before < 100 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
