"""A page cache that one node holds: the library says so, and `interleave` places the pages again."""

from __future__ import annotations

import pytest
from support.numa_checks import assert_local, assert_right, describe, remote_shares
from support.numa_lab import FOUR, TWO, Case

pytestmark = pytest.mark.numa_lab
WARM = {"model": "k768-nk-float", "cache": "warm"}
FOLDERS = {"tmpfs": "/dev/shm", "ext4": "/mnt/scratch"}
AS_IT_LIES = [
    Case(machine, "session", f"warm cache on {place}, as it lies", folder=folder, **WARM)
    for machine in (TWO, FOUR)
    for place, folder in FOLDERS.items()
]
PLACED_AGAIN = [
    Case(machine, "session", f"warm cache on {place}, placed again", folder=folder, numa="interleave", **WARM)
    for machine in (TWO, FOUR)
    for place, folder in FOLDERS.items()
]


def warnings(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "ort_hina.numa" in line and "[W:" in line]


@pytest.mark.parametrize("case", AS_IT_LIES, ids=str)
def test_a_model_on_one_node_is_warned_of_once(case: Case, lab, numa_model):
    result = lab.run(case)
    assert list(result["pages"]) == ["0"], "the windows should lie on node 0"
    lab.measured.append(describe(case, result.counts, result["pages"], remote_shares(result.runs, case.machine)))
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]
    (warning,) = warnings(result["stderr"])
    assert "node 0" in warning and "interleave" in warning


@pytest.mark.parametrize("case", PLACED_AGAIN, ids=str)
def test_interleave_places_it_again(case: Case, lab, numa_model):
    result = lab.run(case)
    shares = remote_shares(result.runs, case.machine)
    lab.measured.append(describe(case, result.counts, result["pages"], shares))
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]
    assert warnings(result["stderr"]) == []
    counts = [result["pages"].get(str(node), 0) for node in case.machine.nodes]
    # In whole huge pages.
    assert max(counts) - min(counts) <= 2 * 512
    assert_local(shares)
