"""Keys and values in one buffer are read by the threads of the node on which they lie, counted by the lab."""

from __future__ import annotations

import pytest
from support.numa_checks import assert_local, describe, remote_shares
from support.numa_lab import FOUR, TWO, Case

pytestmark = pytest.mark.numa_lab
CASES = [
    Case(machine, "attention", f"keys and values, huge pages {thp}", model="attention", thp=thp)
    for machine in (TWO, FOUR)
    for thp in ("always", "never")
]
OFF = [Case(machine, "attention", "keys and values, off", model="attention", numa="off") for machine in (TWO, FOUR)]


@pytest.mark.parametrize("case", [*CASES, *OFF], ids=str)
def test_results_are_right_and_equal(case: Case, lab, numa_attention):
    result = lab.run(case)
    numa_attention.assert_right(result["y"])
    assert result["equal"]
    assert result.counts.load.sum() >= 5 * numa_attention.cache_bytes()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_read_their_own_node(case: Case, lab):
    result = lab.run(case)
    shares = remote_shares(result.runs, case.machine)
    lab.measured.append(describe(case, result.counts, result["pages"], shares))
    assert all(result["pages"].get(str(node), 0) for node in case.machine.nodes), "the caches do not lie on all nodes"
    assert_local(shares)
