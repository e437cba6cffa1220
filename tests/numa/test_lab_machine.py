"""The lab itself: the machine is what was asked for, and the counter counts what was read."""

from __future__ import annotations

import numpy as np
import pytest
from support.numa_lab import FOUR, ODD, ONE, THREE, TWO, Case

pytestmark = pytest.mark.numa_lab
MACHINES = (ONE, TWO, THREE, FOUR, ODD)


@pytest.mark.parametrize("case", [Case(machine, "machine", "machine") for machine in MACHINES], ids=str)
def test_the_machine_is_what_was_asked_for(case: Case, lab):
    machine, nodes = case.machine, lab.run(case)["nodes"]
    assert [node["id"] for node in nodes] == list(machine.nodes)
    assert [node["cpus"] for node in nodes] == [machine.cpus_of(i) for i in machine.nodes]
    for node, megabytes in zip(nodes, machine.megabytes):
        # The kernel keeps some for itself.
        assert 0.8 * megabytes <= node["kilobytes"] / 1024 <= megabytes
    assert [node["distances"] for node in nodes] == [[machine.distance(i, j) for j in machine.nodes] for i in machine.nodes]


@pytest.mark.parametrize("case", [Case(machine, "counter", "counter") for machine in MACHINES], ids=str)
def test_the_counter_agrees_with_the_kernel(case: Case, lab):
    """Each page's node as move_pages tells it; the process reads whole pages and nothing else of them."""
    result = lab.run(case)
    expected = {}
    for block, cpu, direction, node, size in result["expected"]:
        shape = len(case.machine.node_of_cpu), len(case.machine.cpus)
        counts = expected.setdefault(block, {kind: np.zeros(shape, np.int64) for kind in ("load", "store")})
        counts[direction][cpu, node] += size
    assert expected
    for block, counts in expected.items():
        found = result.blocks[block]
        np.testing.assert_array_equal(found.load, counts["load"])
        np.testing.assert_array_equal(found.store, counts["store"])
