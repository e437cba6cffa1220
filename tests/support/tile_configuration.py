"""The calling thread's AMX tile configuration: 64 bytes, set and read by the instructions themselves."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

_LDTILECFG, _STTILECFG = b"\xc4\xe2\x78\x49\x07", b"\xc4\xe2\x79\x49\x07"  # of the address in rdi
_RET = b"\xc3"


def configuration(rows: int, row_bytes: int) -> bytes:
    """Palette 1, all eight tiles of this shape."""
    return bytes([1, *[0] * 15, *[row_bytes % 256, row_bytes // 256] * 8, *[0] * 16, *[rows] * 8, *[0] * 8])


def load(wanted: bytes) -> None:
    _function(_LDTILECFG)(ctypes.create_string_buffer(wanted, 64))


def stored() -> bytes:
    """64 zeros where there is none."""
    buffer = ctypes.create_string_buffer(64)
    _function(_STTILECFG)(buffer)
    return buffer.raw


@cache
def _function(code: bytes):
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code + _RET)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    function.memory = memory  # lives as long as the function
    return function
