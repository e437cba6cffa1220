"""What `ort_hina.numa` makes of the same file: off and bind."""

from __future__ import annotations

import pytest
from support.numa_checks import assert_local, assert_right, describe, remote_shares
from support.numa_lab import FOUR, ONE, TWO, Case

pytestmark = pytest.mark.numa_lab
MODELS = ("k768-nk-float", "k2880-kn-float")
ON_ONE_NODE = {model: Case(ONE, "session", f"one node, {model}", model=model) for model in MODELS}
OFF = [Case(machine, "session", f"off, {model}", model=model, numa="off") for machine in (TWO, FOUR) for model in MODELS]
BIND = [
    Case(machine, "session", f"bind, {model}, from {folder}", model=model, numa="bind", folder=folder, thp="never")
    for machine in (TWO, FOUR)
    for model, folder in zip(MODELS, ("/dev/shm", "/mnt/scratch"))
]


@pytest.mark.parametrize("case", ON_ONE_NODE.values(), ids=str)
def test_one_node(case: Case, lab, numa_model):
    result = lab.run(case)
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]
    assert "ort_hina.numa" not in result["stderr"]


@pytest.mark.parametrize("case", OFF, ids=str)
def test_off_gives_the_bits_of_one_node(case: Case, lab, numa_model):
    result = lab.run(case)
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]
    assert result["y"] == lab.run(ON_ONE_NODE[case.arguments["model"]])["y"]


@pytest.mark.parametrize("case", BIND, ids=str)
def test_bind_places_rows(case: Case, lab, numa_model):
    """N05."""
    result = lab.run(case)
    shares = remote_shares(result.runs, case.machine)
    lab.measured.append(describe(case, result.counts, result["pages"], shares))
    assert_right(result["y"], numa_model(case.arguments["model"]))
    assert result["equal"]
    counts = [result["pages"].get(str(node), 0) for node in case.machine.nodes]
    assert min(counts) >= 0.9 * sum(counts) / len(counts)
    # Each of an expert's three matrices is cut once for each node. Interleaved, every page would be a run of its own.
    assert result["runs"] <= 2 * 3 * numa_model(case.arguments["model"]).weights.attributes["num_experts"] * len(counts)
    assert_local(shares)
