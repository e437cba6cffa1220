"""Which instruction level is chosen, and how ORT_HINA_ISA forces one."""

from __future__ import annotations

import platform

import pytest

from ort_hina import _native

VARIABLE = "ORT_HINA_ISA"
EMULATION = "ORT_HINA_EMULATED_AMX"
X86 = platform.machine() in ("x86_64", "AMD64")
NAMES = ["amx", "avx512_bf16", "avx512", "avx2", "portable"] if X86 else ["portable"]


@pytest.fixture(autouse=True)
def the_cpu_as_it_is(monkeypatch):
    monkeypatch.delenv(EMULATION, raising=False)


def levels() -> dict[str, dict]:
    return {level["name"]: level for level in _native.isa_levels()}


def available() -> list[str]:
    return [name for name, level in levels().items() if level["available"]]


def test_levels_of_this_build_best_first():
    assert list(levels()) == NAMES


def test_every_level_says_why():
    assert all(level["reason"] for level in levels().values())
    assert levels()["portable"]["available"]  # runs anywhere


@pytest.mark.skipif(not X86, reason="a build with one level")
def test_levels_agree_with_what_the_kernel_lists():
    """/proc/cpuinfo is the system's own reading of the CPU and of what it enabled."""
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    needed: set[str] = set()
    own = {
        "portable": set(),
        "avx2": {"avx2", "fma", "f16c"},
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        "avx512_bf16": {"avx512_bf16"},
        "amx": {"amx_tile", "amx_bf16"},
    }
    for name in reversed(NAMES):
        needed |= own[name]
        assert levels()[name]["available"] == (needed <= flags), levels()[name]["reason"]


def test_a_level_has_those_below_it():
    found = [level["available"] for level in levels().values()]
    assert found == sorted(found)  # from the best to portable: first what lacks, then what there is


def test_chooses_the_best_available():
    choice = _native.chosen_isa()
    assert choice["name"] == available()[0]
    assert choice["reason"].startswith("best of this CPU: ")


@pytest.mark.parametrize("isa", NAMES)
def test_forces_any_available(isa, monkeypatch):
    if isa not in available():
        pytest.skip(levels()[isa]["reason"])
    monkeypatch.setenv(VARIABLE, isa)
    assert _native.chosen_isa() == {"name": isa, "reason": f"forced by {VARIABLE}"}


def test_empty_is_not_forced(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    assert _native.chosen_isa()["name"] == available()[0]


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx", "avx2 ", "avx512-bf16", "AMX"])
def test_an_unknown_level_is_an_error_that_names_the_known(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(ValueError) as error:
        _native.chosen_isa()
    assert str(error.value) == f"{VARIABLE}={name} is not a level of this build; expected one of: {', '.join(NAMES)}"


@pytest.mark.parametrize("isa", NAMES)
def test_a_lacking_level_is_an_error_that_says_what_lacks(isa, monkeypatch):
    if isa in available():
        pytest.skip("this machine has it")
    monkeypatch.setenv(VARIABLE, isa)
    with pytest.raises(ValueError) as error:
        _native.chosen_isa()
    assert str(error.value) == f"{VARIABLE}={isa}, but {levels()[isa]['reason']}"


@pytest.mark.skipif("avx512_bf16" not in available() or "amx" in available(), reason="a CPU that lacks AMX only")
class TestEmulatedAmx:
    """Tests may have AMX on a CPU that lacks only that; users must not get it by accident."""

    def test_can_be_forced(self, monkeypatch):
        monkeypatch.setenv(EMULATION, "1")
        monkeypatch.setenv(VARIABLE, "amx")
        assert _native.chosen_isa() == {"name": "amx", "reason": f"forced by {VARIABLE}"}

    def test_is_never_the_best(self, monkeypatch):
        monkeypatch.setenv(EMULATION, "1")
        assert _native.chosen_isa()["name"] == "avx512_bf16"

    def test_says_that_it_is_emulated(self, monkeypatch):
        monkeypatch.setenv(EMULATION, "1")
        amx = levels()["amx"]
        assert amx["available"]
        assert EMULATION in amx["reason"] and "instructions without an emulator would be fatal" in amx["reason"]

    @pytest.mark.parametrize("value", ["", "0", "yes"])
    def test_nothing_but_1_turns_it_on(self, value, monkeypatch):
        monkeypatch.setenv(EMULATION, value)
        assert not levels()["amx"]["available"]


@pytest.mark.skipif("avx512_bf16" in available(), reason="this CPU has the vector instructions of AMX's kernels")
def test_amx_is_not_emulated_without_its_vector_instructions(monkeypatch):
    before = levels()
    monkeypatch.setenv(EMULATION, "1")
    assert levels() == before
