"""Machines and processes that are not symmetric, and memory that is not regular: all run and answer right."""

from __future__ import annotations

import pytest
from support.numa_checks import assert_local, assert_right, chosen_bytes, describe, remote_shares
from support.numa_lab import FOUR, ODD, THREE, TWO, Case

pytestmark = pytest.mark.numa_lab
K768, K2880, K14336 = "k768-nk-float", "k2880-nk-bfloat16", "k14336-kn-float"


def session(machine, name, model=K768, **arguments) -> Case:
    return Case(machine, "session", f"{name}, {model}", model=model, **arguments)


LOCAL = [
    session(FOUR, "more nodes than threads", threads=2),
    session(FOUR, "more nodes than threads", K2880, threads=3, folder="/mnt/scratch", numa="interleave"),
    session(FOUR, "CPUs of two nodes", cpus=[1, 3]),
]
ONE_NODE = [
    session(TWO, "CPUs of one node", cpus=[2, 3]),
    session(FOUR, "one CPU", cpus=[2], folder="/mnt/scratch", numa="interleave"),
]
COLD = session(TWO, "cold ext4 as it lies", folder="/mnt/scratch")
# Of one node only, of irregular placement, or with more to do for the threads of one node than for those of another, which help
# then: no share is promised.
COUNTED = [
    *ONE_NODE,
    session(FOUR, "one thread", threads=1),
    COLD,
    session(FOUR, "cold ext4 as it lies", K2880, folder="/mnt/scratch"),
    *(session(THREE, "uneven", model, folder="/mnt/scratch", numa="interleave") for model in (K768, K2880, K14336)),
    session(THREE, "uneven, inline", storage="inline", thp="never"),
    session(THREE, "uneven, tmpfs", K2880),
    session(TWO, "uneven threads", cpus=[0, 2, 3]),
    *(session(ODD, "odd", model, folder="/mnt/scratch", numa="interleave") for model in (K768, K2880, K14336)),
    session(ODD, "odd, inline", storage="inline"),
    *(session(TWO, "small and huge pages", model, storage="shared") for model in (K768, K2880, K14336)),
    session(FOUR, "small and huge pages", storage="shared"),
]


def cpus_with_threads(case: Case) -> list[int]:
    cpus = case.arguments.get("cpus") or list(range(len(case.machine.node_of_cpu)))
    return cpus[: case.arguments.get("threads")]


@pytest.mark.parametrize("case", [*LOCAL, *COUNTED], ids=str)
def test_results_are_right_and_equal(case: Case, lab, numa_model):
    result = lab.run(case)
    model = numa_model(case.arguments["model"])
    assert_right(result["y"], model)
    assert result["equal"]
    assert result.counts.load.sum() >= 5 * chosen_bytes(model)
    idle = [cpu for cpu in range(len(case.machine.node_of_cpu)) if cpu not in cpus_with_threads(case)]
    assert result.counts.load[idle].sum() == 0, "a thread ran outside the process's CPUs"


@pytest.mark.parametrize("case", [*LOCAL, *COUNTED], ids=str)
def test_reads(case: Case, lab):
    result = lab.run(case)
    shares = remote_shares(result.runs, case.machine, cpus_with_threads(case))
    lab.measured.append(describe(case, result.counts, result["pages"], shares))
    if case in LOCAL:
        assert_local(shares)


@pytest.mark.parametrize("case", ONE_NODE, ids=str)
def test_one_node_asks_and_moves_nothing(case: Case, lab):
    """A query would have touched every page; ort_hina.numa = interleave would have copied them."""
    result = lab.run(case)
    assert result["present"] <= 0.5 * sum(result["pages"].values())
    assert "ort_hina.numa" not in result["stderr"]


@pytest.mark.parametrize("case", [COLD], ids=str)
def test_several_nodes_are_asked(case: Case, lab):
    result = lab.run(case)
    assert result["present"] == sum(result["pages"].values())
