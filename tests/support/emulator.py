"""AMX instructions in this process, on a CPU without AMX: csrc/amx_emulator, compiled when it is first wanted.

`install` comes after whatever else takes SIGILL (pytest's faulthandler does as it starts), and may be called again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc" / "amx_emulator"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


def install() -> None:
    """Lets this process execute AMX instructions. Skips the test, with the reason, where that is not possible here."""
    if _library().amx_emu_install() != 0:
        pytest.skip("the AMX emulator needs a CPU with AVX2, FMA and F16C")


def counts() -> dict[str, int]:
    """How often each AMX instruction (``"TDPBF16PS"``, ``"TILELOADD"``, ...) was emulated since `reset`, in all threads."""
    library = _library()
    return {library.amx_emu_op_name(op).decode(): library.amx_emu_count(op) for op in range(_number_of_instructions())}


def reset() -> None:
    """Sets the counts to 0."""
    _library().amx_emu_reset_counts()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_compiled()))
    library.amx_emu_count.restype = ctypes.c_uint64
    library.amx_emu_op_name.restype = ctypes.c_char_p
    return library


@cache
def _number_of_instructions() -> int:
    header = (SOURCES / "amx_emulator.h").read_text()
    body = header.partition("enum amx_emu_op {")[2].partition("}")[0]
    return body.count(",")  # the last enumerator, which counts the others, has none


def _compiled() -> Path:
    """The shared library, under build/, named after what it was compiled from."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("AMX is of x86-64 CPUs")
    units = sorted(SOURCES.glob("*.cc"))
    contents = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    key = hashlib.sha256(contents + repr((compiler, FLAGS)).encode()).hexdigest()[:16]
    library = ROOT / "build" / "amx_emulator" / key / "libamx_emulator.so"
    if not library.exists():
        if not compiler:
            pytest.skip("no C++ compiler for the AMX emulator: AMX kernels are not tested")
        _compile(compiler, units, library)
    return library


def _compile(compiler: str, units: list[Path], library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: another process may be at it as well.
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [*compiler.split(), *FLAGS, f"-I{ROOT / 'csrc'}", *map(str, units), "-o", str(unfinished), "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"the AMX emulator does not compile: {' '.join(command)}\n{result.stderr}")
    unfinished.replace(library)
