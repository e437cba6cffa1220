"""Memory of this process as the kernel sees it: where pages lie, policies, mappings. System calls of x86-64."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

PAGE = 4096
HUGE_PAGE = 2 << 20
NODES = Path("/sys/devices/system/node")
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

POLICY_DEFAULT, POLICY_BIND, POLICY_INTERLEAVE = 0, 2, 3
MADV_HUGEPAGE, MADV_NOHUGEPAGE = 14, 15
_MBIND, _SET_MEMPOLICY, _MOVE_PAGES = 237, 238, 279

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def parse_list(text: str) -> list[int]:
    """``0-2,5`` → [0, 1, 2, 5]"""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def memory_nodes() -> list[int]:
    """The ids of nodes that have memory."""
    return parse_list((NODES / "has_memory").read_text())


def page_nodes(address: int, size: int) -> np.ndarray:
    """The node of each page that [address, address + size) has a byte of, or -errno."""
    first, last = address // PAGE, (address + size + PAGE - 1) // PAGE
    pages = np.arange(first, last, dtype=np.uint64) * PAGE
    status = np.empty(len(pages), np.int32)
    result = libc.syscall(
        _MOVE_PAGES, 0, ctypes.c_ulong(len(pages)), ctypes.c_void_p(pages.ctypes.data), None,
        ctypes.c_void_p(status.ctypes.data), 0,
    )  # fmt: skip
    _check(result, "move_pages")
    return status


def set_policy(mode: int, nodes: Iterable[int] = ()) -> None:
    """The policy of this thread, and of those that it starts, for memory that is yet to come."""
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    _check(libc.syscall(_SET_MEMPOLICY, mode, ctypes.byref(mask) if mask.value else None, 64), "set_mempolicy")


def set_policy_of(address: int, size: int, mode: int, nodes: Iterable[int]) -> None:
    """The policy of whole pages that have not been touched yet."""
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    result = libc.syscall(_MBIND, ctypes.c_void_p(address), ctypes.c_ulong(size), mode, ctypes.byref(mask), 64, 0)
    _check(result, "mbind")


def advise(address: int, size: int, advice: int) -> None:
    _check(libc.madvise(address, size, advice), "madvise")


def anonymous(size: int, alignment: int = HUGE_PAGE) -> int:
    """The address of new, untouched memory. It is never freed."""
    address = libc.mmap(None, size + alignment, mmap.PROT_READ | mmap.PROT_WRITE,
                        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)  # fmt: skip
    return (address + alignment - 1) // alignment * alignment


class Mapping(NamedTuple):
    begin: int
    end: int
    permissions: str
    offset: int
    path: str


def mappings() -> list[Mapping]:
    """Of this process, by address."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in fields[0].split("-"))
        path = fields[5].strip() if len(fields) > 5 else ""
        found.append(Mapping(begin, end, fields[1], int(fields[2], 16), path))
    return found


def file_addresses(path: str, offset: int, size: int) -> list[int]:
    """Where these bytes of a file are mapped, once for each mapping of all of them.

    A policy for a part of a mapping splits it: neighbours that continue the file are taken together.
    """
    addresses, reached = [], {}
    for part in mappings():
        if part.path != path:
            continue
        # (address that continues the mapping) → (file offset that it continues with, where the whole began)
        expected, begin, begin_offset = reached.pop(part.begin, (None, part.begin, part.offset))
        if expected != part.offset:
            begin, begin_offset = part.begin, part.offset
        file_end = part.offset + part.end - part.begin
        address = begin + offset - begin_offset
        if begin_offset <= offset and part.offset < offset + size <= file_end and address >= begin:
            addresses.append(address)
        reached[part.end] = (file_end, begin, begin_offset)
    return addresses


def find_bytes(head: bytes, tail: bytes, size: int) -> list[int]:
    """Where in anonymous memory `size` bytes lie that begin with `head` and end with `tail`, within one mapping.

    Memory is read in pieces that are smaller than what is looked for, so that no piece is found itself.
    """
    found = []
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for part in mappings():
            if "w" not in part.permissions or part.path.startswith(("/", "[v")) or part.end - part.begin < size:
                continue
            step = min(1 << 20, size // 2)
            for at in range(part.begin, part.end - size + 1, step):
                memory.seek(at)
                piece = memory.read(min(step + len(head) - 1, part.end - at))
                position = piece.find(head)
                if position < 0 or at + position + size > part.end:
                    continue
                memory.seek(at + position + size - len(tail))
                if memory.read(len(tail)) == tail:
                    found.append(at + position)
    return found
