"""Arrays that end (or begin) at a page that nothing may touch: one byte too many kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(data: np.ndarray, *, at: str = "end") -> np.ndarray:
    """A copy of `data` (same type and shape, contiguous) between two forbidden pages.

    Args:
        at: ``"end"``: the byte after the last one is forbidden; ``"start"``: the byte before the first one. The other
            side has a gap of less than a page.
    """
    data = np.ascontiguousarray(data)
    page = mmap.PAGESIZE
    room = max(1, -(-data.nbytes // page)) * page
    memory = mmap.mmap(-1, room + 2 * page)
    _forbid(memory, 0, page)
    _forbid(memory, page + room, page)
    begin = page if at == "start" else page + room - data.nbytes
    copy = np.frombuffer(memory, dtype=np.uint8, count=data.nbytes, offset=begin).view(data.dtype).reshape(data.shape)
    copy[...] = data
    return copy


def _forbid(memory: mmap.mmap, offset: int, length: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset
    if _libc.mprotect(address, length, _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")
