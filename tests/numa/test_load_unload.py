"""Many sizes on 1 to 4 nodes: loaded, run and unloaded three times."""

from __future__ import annotations

import pytest
from support.elements import ELEMENTS
from support.numa_checks import assert_right
from support.numa_lab import FOUR, ODD, ONE, THREE, TWO, Case

pytestmark = pytest.mark.numa_lab
# Intermediate sizes and numbers of experts.
SIZES = ((512, 8), (768, 60), (1408, 160), (1536, 161), (2880, 8))
MACHINES = (ONE, TWO, THREE, FOUR)
MODELS = tuple(f"tiny-{kind}-{size}-{experts}" for kind in ELEMENTS for size, experts in SIZES)


@pytest.mark.parametrize("case", [Case(m, "load", "load and unload", models=MODELS) for m in MACHINES], ids=str)
def test_load_run_unload(case: Case, lab, numa_model):
    """D04."""
    outputs = lab.run(case)["y"]
    assert len(outputs) == len(MODELS)
    for name, (first, *others) in zip(MODELS, outputs.values()):
        assert_right(first, numa_model(name))
        assert others == [first, first]


@pytest.mark.parametrize(
    "case",
    [Case(m, "load", "load and unload, placed again", models=MODELS[::4], numa="interleave") for m in (TWO, THREE, ODD)],
    ids=str,
)
def test_load_run_unload_placed_again(case: Case, lab, numa_model):
    for name, (first, *others) in zip(case.arguments["models"], lab.run(case)["y"].values()):
        assert_right(first, numa_model(name))
        assert others == [first, first]
