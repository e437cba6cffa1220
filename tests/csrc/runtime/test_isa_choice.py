"""Which instruction level is chosen, and how ORT_HINA_ISA forces one."""

from __future__ import annotations

import platform

import pytest
from support.levels import LACKING, LEVELS

from ort_hina import _native

VARIABLE = "ORT_HINA_ISA"


def test_levels_of_this_build_best_first():
    expected = ["avx512", "avx2", "portable"] if platform.machine() in ("x86_64", "AMD64") else ["portable"]
    assert [level["name"] for level in _native.isa_levels()] == expected


def test_every_level_says_why():
    assert all(level["reason"] for level in _native.isa_levels())
    assert _native.isa_levels()[-1]["available"]  # portable runs anywhere


def test_levels_agree_with_what_the_kernel_lists():
    """/proc/cpuinfo is the system's own reading of the CPU and of what it enabled."""
    if not LEVELS[0].startswith("avx") and not LACKING:
        pytest.skip("a build with one level")
    with open("/proc/cpuinfo") as file:
        flags = next(line for line in file if line.startswith("flags")).split()
    avx2 = {"avx2", "fma", "f16c"}
    needed = {"avx512": avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "avx2": avx2, "portable": set()}
    for level in _native.isa_levels():
        assert level["available"] == (needed[level["name"]] <= set(flags)), level["reason"]


def test_chooses_the_best_available():
    choice = _native.chosen_isa()
    assert choice["name"] == LEVELS[0]
    assert choice["reason"].startswith("best of this CPU: ")


@pytest.mark.parametrize("isa", LEVELS)
def test_forces_any_available(isa, monkeypatch):
    monkeypatch.setenv(VARIABLE, isa)
    assert _native.chosen_isa() == {"name": isa, "reason": f"forced by {VARIABLE}"}


def test_empty_is_not_forced(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    assert _native.chosen_isa()["name"] == LEVELS[0]


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx", "avx2 "])
def test_an_unknown_level_is_an_error_that_names_the_known(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    known = ", ".join(level["name"] for level in _native.isa_levels())
    with pytest.raises(ValueError) as error:
        _native.chosen_isa()
    assert str(error.value) == f"{VARIABLE}={name} is not a level of this build; expected one of: {known}"


@pytest.mark.skipif(not LACKING, reason="this machine has every level of this build")
def test_a_lacking_level_is_an_error_that_says_what_lacks(monkeypatch):
    for level in LACKING:
        monkeypatch.setenv(VARIABLE, level["name"])
        with pytest.raises(ValueError) as error:
            _native.chosen_isa()
        assert str(error.value) == f"{VARIABLE}={level['name']}, but {level['reason']}"
