"""Counts the accesses of this process to ranges of memory, by CPU and by node of the page (lab/numa_count.c does it).

    with counting(7, [(address, size), ...]):
        session.run(...)

The counts become block 7 of the file that numa_vm.sh --count names.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator, Sequence

from memory import PAGE, libc

_CONTROL, _CONTROL_SIZE = 0x100000000000, 8 << 35  # as in numa_count.c
_MAP_FIXED_NOREPLACE, _MAP_NORESERVE = 0x100000, 0x4000
_mapped: list[int] = []


@contextlib.contextmanager
def counting(block: int, ranges: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Counts accesses to every page that a range (address, size) has a byte of. `block`: a number from 1 on."""
    _send(0, block)
    for address, size in ranges:
        _send(address // PAGE, (address + size + PAGE - 1) // PAGE)
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Ends the block that is open, also one of a process that has died."""
    _send(0, 0)


def _send(*pages: int) -> None:
    if not _mapped:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE | _MAP_NORESERVE
        at = libc.mmap(ctypes.c_void_p(_CONTROL), _CONTROL_SIZE, mmap.PROT_READ, flags, -1, 0)
        if at != _CONTROL:
            raise OSError(ctypes.get_errno(), "the counter's control window cannot be mapped")
        _mapped.append(at)
    for page in pages:
        ctypes.c_uint8.from_address(_CONTROL + 8 * page).value  # noqa: B018  # the read is the message
