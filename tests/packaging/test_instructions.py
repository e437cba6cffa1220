"""I02. No instruction of a newer CPU outside the functions that are called only after that CPU was recognised.

A build on an AVX-512 machine must not die on an older one. What could go wrong is not only a wrong compiler flag: an inline
function of a header that is compiled in an AVX-512 unit may be the copy that the linker keeps for everybody, and a static
initialiser of such a unit runs on every machine. So every function of every object file is looked at.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_tree import object_files

pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 instructions"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed (package binutils)"),
]

FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.+)>:$")
INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\s+(?P<text>\S.*)$")

# How a function of csrc/kernels says which level it is for: the name of its namespace, as mangled.
KERNELS = "ort_hina7kernels"
LEVELS = {f"{KERNELS}{len(name)}{name}": name for name in ("avx2", "avx512", "avx512_bf16", "amx")}
# Called on every machine to list the kernels, whatever namespace it is in.
RUNS_EVERYWHERE = "isa_table"

AVX512 = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b")
BF16 = re.compile(r"^v(dpbf16ps|cvtne2ps2bf16|cvtneps2bf16)")
AMX = re.compile(r"%tmm|^(ld|st)tilecfg|^tilerelease")
# Every AVX instruction starts with a v; of the others that do, none is in compiled code (verr, verw, vmcall, ...).
AVX = re.compile(r"^v(?!err|erw|mcall|mlaunch|mresume|mread|mwrite)|%ymm")
BMI = re.compile(r"^(andn|bextr|bls[ir]|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)[lq]?\b")

FORBIDDEN = {
    "baseline": (AVX, BMI, AVX512, BF16, AMX),
    "avx2": (AVX512, BF16, AMX),
    "avx512": (BF16, AMX),
    "avx512_bf16": (AMX,),
    "amx": (),
}


def level_of(function: str) -> str:
    """The instruction level that the function may use: "baseline" is what every x86-64 CPU has."""
    if RUNS_EVERYWHERE in function:
        return "baseline"
    return next((level for mark, level in LEVELS.items() if mark in function), "baseline")


def violations(lines: Iterator[str]) -> dict[str, str]:
    """Of objdump's output: each function that uses what its level does not have, with the first such instruction."""
    found: dict[str, str] = {}
    function = ""
    for line in lines:
        if match := FUNCTION.match(line):
            function = match["name"]
        elif (match := INSTRUCTION.match(line)) and function not in found:
            if any(pattern.search(match["text"]) for pattern in FORBIDDEN[level_of(function)]):
                found[function] = match["text"]
    return found


def disassemble(path: Path) -> list[str]:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any(map(FUNCTION.match, lines)), f"{path} holds no machine code: link-time optimisation hides it from this check"
    return lines


def test_newer_instructions_stay_in_the_functions_of_their_level():
    objects = object_files()
    assert objects, "the build tree holds no object files"
    found = {path.name: bad for path in objects if (bad := violations(iter(disassemble(path))))}
    assert not found, "\n".join(
        f"{file}: {function} ({level_of(function)}): {text}" for file, bad in found.items() for function, text in bad.items()
    )


def test_the_levels_are_really_there():
    """Else the test above would pass on a build that lost its kernels, or whose namespaces were renamed."""
    functions: dict[str, str] = {}
    for path in object_files():
        if "kernels" in path.parts:
            text = disassemble(path)
            for mark, level in LEVELS.items():
                if any(mark in line for line in text if FUNCTION.match(line)):
                    functions[level] = "\n".join(text)
    assert "%ymm" in functions["avx2"]
    assert AVX512.search(functions["avx512"])
    assert "vdpbf16ps" in functions["avx512_bf16"]
    assert "tdpbf16ps" in functions["amx"] and "tileloadd" in functions["amx"]


@pytest.mark.parametrize(
    ("function", "instruction", "allowed"),
    [
        ("_ZN8ort_hina4plan4workEv", "movaps (%rdi),%xmm0", True),
        ("_ZN8ort_hina4plan4workEv", "vmovaps (%rdi),%xmm0", False),
        ("_ZNSt6vectorIfSaIfEE9push_backEOf", "vmovups %zmm0,(%rax)", False),
        ("_ZN8ort_hina4plan4workEv", "shlx   %rax,%rbx,%rcx", False),
        ("_ZN8ort_hina7kernels4avx23runEv", "vfmadd231ps %ymm0,%ymm1,%ymm2", True),
        ("_ZN8ort_hina7kernels4avx23runEv", "vmovups %xmm16,(%rax)", False),
        ("_ZN8ort_hina7kernels6avx5123runEv", "vmovups (%rax),%zmm0{%k1}{z}", True),
        ("_ZN8ort_hina7kernels6avx5123runEv", "tdpbf16ps %tmm0,%tmm1,%tmm2", False),
        ("_ZN8ort_hina7kernels6avx5123runEv", "vdpbf16ps %zmm1,%zmm2,%zmm3", False),
        ("_ZN8ort_hina7kernels6avx5123runEv", "vcvtne2ps2bf16 %zmm1,%zmm2,%zmm3", False),
        ("_ZN8ort_hina7kernels6avx5123runEv", "vcvtneps2bf16 %zmm1,%ymm2", False),
        ("_ZN8ort_hina7kernels11avx512_bf163runEv", "vdpbf16ps %zmm1,%zmm2,%zmm3", True),
        ("_ZN8ort_hina7kernels11avx512_bf163runEv", "vcvtneps2bf16 %zmm1,%ymm2", True),
        ("_ZN8ort_hina7kernels11avx512_bf163runEv", "tilezero %tmm0", False),
        ("_ZN8ort_hina7kernels3amx3runEv", "tdpbf16ps %tmm0,%tmm1,%tmm2", True),
        ("_ZN8ort_hina7kernels3amx3runEv", "ldtilecfg (%rdi)", True),
        ("_ZN8ort_hina9operators7MoeCall3runEv", "tilerelease", False),
        ("_ZN8ort_hina9operators7MoeCall3runEv", "sttilecfg (%rdi)", False),
        ("_ZN8ort_hina7kernels6avx5129isa_tableEv", "vmovq  %rdx,%xmm0", False),
        ("_GLOBAL__sub_I_kernels_avx512.cc", "vmovdqu %ymm0,(%rax)", False),
    ],
)
def test_the_check_itself(function, instruction, allowed):
    listing = iter([f"0000000000000000 <{function}>:", f"       0:\t{instruction}"])
    assert (violations(listing) == {}) is allowed
