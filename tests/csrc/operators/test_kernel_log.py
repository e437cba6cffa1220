"""ORT_HINA_LOG=kernels tells on stderr which kernels a matmul could have had, what each would cost, and which it got."""

from __future__ import annotations

import pytest
from support.kernel_log import log_of_calls, questions
from support.levels import every_level

HIDDEN, INTERMEDIATE = 32, 24
SIZES = {"hidden": HIDDEN, "intermediate": INTERMEDIATE}
FLOAT = {"types": (("float", False),)}


@every_level
def test_tells_candidates_costs_and_the_choice(isa):
    asked = questions(log_of_calls(isa, [1, 40], **SIZES, **FLOAT))
    gate_up, down = (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    forms = ("f32_f32_nk", "f32_f32_kn")
    assert set(asked) == {(m, n, k, form) for m in (1, 40) for n, k in (gate_up, down) for form in forms}
    for candidates in asked.values():
        assert len(candidates) >= 2
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        assert sum(candidate.chosen for candidate in candidates) == 1
        assert all(candidate.cycles > 0 for candidate in candidates)


def test_tells_each_question_once():
    assert log_of_calls("portable", [1, 7], times=5, **SIZES, **FLOAT) == log_of_calls("portable", [1, 7], **SIZES, **FLOAT)


def test_every_line_says_what_it_is_about():
    lines = log_of_calls("portable", [3], **SIZES, **FLOAT).splitlines()
    assert lines and all(line.startswith("ort_hina: kernels: m=3 n=") and line.endswith(" cycles") for line in lines)


@pytest.mark.parametrize("topics", ["", "memory"])
def test_is_silent_otherwise(topics):
    assert log_of_calls("portable", [1], topics=topics, **SIZES, **FLOAT) == ""


def test_is_one_topic_of_several():
    assert questions(log_of_calls("portable", [1], topics="memory,kernels", **SIZES, **FLOAT))
