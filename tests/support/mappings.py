"""Memory of several kinds, of the process's own."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np

PAGE = mmap.PAGESIZE
READ, READ_WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def random_bytes(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def map_file(path: Path, *, flags: int = mmap.MAP_PRIVATE, prot: int = READ_WRITE) -> np.ndarray:
    """The bytes of a file, in a mapping as ONNX Runtime has them of external data."""
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, flags=flags, prot=prot), dtype=np.uint8)


def map_anonymous(size: int, *, flags: int = mmap.MAP_PRIVATE) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS), dtype=np.uint8)


def forbid(memory: np.ndarray, offset: int, length: int) -> None:
    """Whole pages of `memory` that nothing may touch from now on."""
    if _libc.mprotect(memory.ctypes.data + offset, length, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")


def mappings_of(memory: np.ndarray) -> int:
    """How many of the kernel's mappings hold a byte of `memory`."""
    begin, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return sum(int(first, 16) < end and int(last, 16) > begin for first, last in ranges)
