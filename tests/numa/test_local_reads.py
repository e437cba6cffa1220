"""Weights that lie on all nodes are read by the threads of their own node, counted by the lab."""

from __future__ import annotations

import pytest
from support.numa_checks import assert_local, assert_right, chosen_bytes, describe, remote_shares
from support.numa_lab import FOUR, TWO, Case

pytestmark = pytest.mark.numa_lab
RUNS = 7

TMPFS = {"folder": "/dev/shm"}
# The page cache of ext4 follows no policy exactly: the pages are placed again.
EXT4 = {"folder": "/mnt/scratch", "numa": "interleave"}
INLINE = {"storage": "inline"}
PLACES = {"tmpfs": TMPFS, "ext4, placed again": EXT4, "inline": INLINE}
MODELS = (
    "k768-nk-float", "k768-kn-bfloat16", "k2880-nk-bfloat16", "k2880-kn-float", "k14336-nk-bfloat16", "k14336-kn-float",
)  # fmt: skip


def cases() -> list[Case]:
    """Two nodes: every model in every place; four nodes: each model in one place after the other."""
    made = []
    for i, model in enumerate(MODELS):
        for j, place in enumerate(PLACES):
            for thp in ("always", "never"):
                machines = (TWO, FOUR) if (i + j) % 3 == 0 else (TWO,)
                name = f"{model}, {place}, huge pages {thp}"
                arguments = PLACES[place] | {"model": model, "thp": thp, "runs": RUNS}
                made += [Case(machine, "session", name, **arguments) for machine in machines]
    return made


def has_few_granules(case: Case) -> bool:
    """Whether a step's weights lie in so few huge pages that one node may have several times the work of another, which then
    helps: a matter of luck. (What was placed again, and tmpfs, have small pages.)"""
    return case.arguments.get("storage") == "inline" and case.arguments["thp"] == "always"


LARGE = [
    Case(machine, "session", "large windows, inline, huge pages always", model="large-nk-float", thp="always", runs=RUNS, **INLINE)
    for machine in (TWO, FOUR)
]
CASES = [*cases(), *LARGE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_right_and_equal(case: Case, lab, numa_model):
    result = lab.run(case)
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_read_their_own_node(case: Case, lab, numa_model):
    result = lab.run(case)
    shares = remote_shares(result.runs, case.machine)
    lab.measured.append(describe(case, result.counts, result["pages"], shares))
    assert all(result["pages"].get(str(node), 0) for node in case.machine.nodes), "the windows do not lie on all nodes"
    assert result.counts.load.sum() >= RUNS * chosen_bytes(numa_model(case.arguments["model"]))
    if case in LARGE or not has_few_granules(case):
        assert_local(shares)
