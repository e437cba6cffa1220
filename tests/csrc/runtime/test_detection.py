"""Which levels are found on CPUs that are not this one: tables of CPUID, XCR0 and the permission for AMX tiles."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

import pytest

from ort_hina import _native

# Where CPUID tells a feature: (leaf, subleaf), register (eax 0 … edx 3), bit.
BITS = {
    "fma": ((1, 0), 2, 12),
    "osxsave": ((1, 0), 2, 27),
    "f16c": ((1, 0), 2, 29),
    "avx2": ((7, 0), 1, 5),
    "avx512f": ((7, 0), 1, 16),
    "avx512dq": ((7, 0), 1, 17),
    "avx512bw": ((7, 0), 1, 30),
    "avx512vl": ((7, 0), 1, 31),
    "amx-bf16": ((7, 0), 3, 22),
    "amx-tile": ((7, 0), 3, 24),
    "amx-int8": ((7, 0), 3, 25),
    "avx512_bf16": ((7, 1), 0, 5),
}
AVX2 = frozenset({"osxsave", "fma", "f16c", "avx2"})
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
BF16 = AVX512 | {"avx512_bf16"}
AMX = BF16 | {"amx-tile", "amx-bf16", "amx-int8"}

# Bits of XCR0: x87 and SSE, AVX, the three of AVX-512, the two of AMX.
AVX_STATE = 0b111
AVX512_STATE = AVX_STATE | 0xE0
AMX_STATE = AVX512_STATE | 3 << 17


@dataclass(frozen=True)
class Machine:
    features: frozenset[str]
    xcr0: int
    permission: int = 0  # 0, or the errno of the refusal
    last_subleaf_of_7: int = 1
    wild: dict = field(default_factory=dict)  # registers that are as they are, whatever the features

    def cpuid(self) -> dict[tuple[int, int], tuple[int, int, int, int]]:
        table = {(1, 0): [0, 0, 0, 0], (7, 0): [self.last_subleaf_of_7, 0, 0, 0], (7, 1): [0, 0, 0, 0]}
        for name in self.features:
            leaf, register, bit = BITS[name]
            table[leaf][register] |= 1 << bit
        return {leaf: tuple(registers) for leaf, registers in table.items()} | self.wild

    def levels(self) -> dict[str, dict]:
        return {level["name"]: level for level in _native.detect_levels(self.cpuid(), self.xcr0, self.permission)}

    def available(self) -> list[str]:
        return [name for name, level in self.levels().items() if level["available"]]

    def reason(self, isa: str) -> str:
        return self.levels()[isa]["reason"]


SAPPHIRE_RAPIDS = Machine(AMX, AMX_STATE)
ORDER = ["amx", "avx512_bf16", "avx512", "avx2", "portable"]


@pytest.mark.parametrize(
    ("machine", "best"),
    [
        pytest.param(Machine(frozenset(), 0, last_subleaf_of_7=0), "portable", id="a CPU of 2005"),
        pytest.param(Machine(frozenset({"osxsave"}), AVX_STATE), "portable", id="Sandy Bridge"),
        pytest.param(Machine(AVX2, AVX_STATE, last_subleaf_of_7=0), "avx2", id="Zen 3"),
        pytest.param(Machine(AVX512, AVX512_STATE, last_subleaf_of_7=0), "avx512", id="Skylake-X"),
        pytest.param(Machine(AVX512, AVX512_STATE, last_subleaf_of_7=0), "avx512", id="Ice Lake"),
        pytest.param(Machine(BF16, AVX512_STATE, last_subleaf_of_7=1), "avx512_bf16", id="Zen 4"),
        pytest.param(SAPPHIRE_RAPIDS, "amx", id="Sapphire Rapids"),
    ],
)
def test_cpus(machine, best):
    assert machine.available() == ORDER[ORDER.index(best) :]


def test_levels_are_best_first_and_say_why():
    levels = SAPPHIRE_RAPIDS.levels()
    assert list(levels) == ORDER
    assert levels["amx"]["reason"] == "the CPU has amx-bf16 amx-tile and the operating system has enabled the AMX state"


@pytest.mark.parametrize("missing", sorted(AMX - {"osxsave", "amx-int8"}))
def test_every_feature_is_needed(missing):
    """Each alone takes its own level away, and all above it."""
    owner = next(isa for isa, has in zip(ORDER[::-1], (frozenset(), AVX2, AVX512, BF16, AMX), strict=True) if missing in has)
    machine = replace(SAPPHIRE_RAPIDS, features=AMX - {missing})
    assert machine.available() == ORDER[ORDER.index(owner) + 1 :]
    assert machine.reason(owner) == f"the CPU lacks {missing}"


def test_a_hypervisor_advertises_avx512_that_the_system_has_not_enabled():
    machine = Machine(BF16, AVX_STATE)
    assert machine.available() == ["avx2", "portable"]
    assert machine.reason("avx512") == "the operating system has not enabled the AVX-512 state (XCR0)"
    assert machine.reason("avx512_bf16") == f"it needs avx512: {machine.reason('avx512')}"


@pytest.mark.parametrize("bit", [5, 6, 7])
def test_all_of_the_avx512_state_is_needed(bit):
    assert Machine(BF16, AVX512_STATE & ~(1 << bit)).available() == ["avx2", "portable"]


@pytest.mark.parametrize("bit", [17, 18])
def test_a_hypervisor_advertises_amx_that_the_system_has_not_enabled(bit):
    machine = replace(SAPPHIRE_RAPIDS, xcr0=AMX_STATE & ~(1 << bit))
    assert machine.available() == ["avx512_bf16", "avx512", "avx2", "portable"]
    assert machine.reason("amx") == "the operating system has not enabled the AMX state (XCR0)"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.EPERM, "Operation not permitted"),
        (errno.EINVAL, "Invalid argument"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_the_system_refuses_the_permission_for_tiles(error, words):
    machine = replace(SAPPHIRE_RAPIDS, permission=error)
    assert machine.available() == ["avx512_bf16", "avx512", "avx2", "portable"]
    assert machine.reason("amx") == f"the operating system refuses the permission to use AMX tiles ({words})"


def test_int8_alone_is_not_enough():
    machine = replace(SAPPHIRE_RAPIDS, features=AMX - {"amx-bf16"})
    assert machine.available()[0] == "avx512_bf16"
    assert machine.reason("amx") == "the CPU lacks amx-bf16"


def test_int8_is_not_needed():
    assert replace(SAPPHIRE_RAPIDS, features=AMX - {"amx-int8"}).available()[0] == "amx"


@pytest.mark.parametrize("lacking", ["avx2", "fma", "f16c"])
def test_hybrid_flags(lacking):
    """AVX-512 without what every real CPU with AVX-512 has: a hypervisor that masks one bit."""
    machine = replace(SAPPHIRE_RAPIDS, features=AMX - {lacking})
    assert machine.available() == ["portable"]
    assert machine.reason("avx512") == f"it needs avx2: the CPU lacks {lacking}"
    assert machine.reason("amx") == f"it needs avx512_bf16: it needs avx512: it needs avx2: the CPU lacks {lacking}"


def test_amx_without_avx512():
    machine = replace(SAPPHIRE_RAPIDS, features=AVX2 | {"amx-tile", "amx-bf16", "amx-int8"})
    assert machine.available() == ["avx2", "portable"]
    assert machine.reason("amx").startswith("it needs avx512_bf16: ")


def test_a_system_that_manages_no_extended_state():
    """Without OSXSAVE, XGETBV itself would be an invalid instruction: XCR0 counts for nothing."""
    machine = replace(SAPPHIRE_RAPIDS, features=AMX - {"osxsave"})
    assert machine.available() == ["portable"]
    assert machine.reason("avx2") == "the operating system has not enabled the AVX state (XCR0)"


def test_what_lies_beyond_the_last_subleaf_counts_for_nothing():
    machine = Machine(AVX512, AVX512_STATE, last_subleaf_of_7=0, wild={(7, 1): (0xFFFFFFFF,) * 4})
    assert machine.available()[0] == "avx512"


def test_a_cpu_without_any_leaf():
    assert [level["name"] for level in _native.detect_levels({}, 0, 0) if level["available"]] == ["portable"]
