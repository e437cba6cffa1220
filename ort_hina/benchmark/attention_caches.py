"""New tokens, and caches of keys and values: so many that no call finds its own in a CPU's cache."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .attention_work import AttentionWork

# All caches that are used in turn have together at least this size, and at least so many times that of the L3.
ROTATION_BYTES = 1 << 30
L3_TIMES = 8
# Of the memory that is free, caches take at most this share: a peer has a copy of its own.
MEMORY_SHARE = 1 / 3
# No multiples of a row: rows that come again are shifted.
_BLOCK, _STEP = (1 << 22) + 3, 99_991
_SYSFS = Path("/sys/devices/system/cpu")
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Tokens:
    """What comes with a call: `query` [B, S, heads · D], `key` and `value` [B, S, kv_heads · D]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Cache:
    """`key` and `value` [B, kv_heads, length, D], the rows of the new tokens still to be written."""

    key: np.ndarray
    value: np.ndarray


def new_tokens(work: AttentionWork, dtype: str) -> Tokens:
    """The same in every process."""
    widths = work.shape.heads, work.shape.kv_heads, work.shape.kv_heads
    return Tokens(*(
        numbers((work.batch, work.new_tokens, heads * work.shape.head_size), dtype, seed)
        for seed, heads in enumerate(widths)
    ))  # fmt: skip


def caches(work: AttentionWork, dtype: str, count: int) -> list[Cache]:
    """`count` of them, no two alike; the same in every process."""
    shape = (work.batch, work.shape.kv_heads, work.length, work.shape.head_size)
    return [Cache(numbers(shape, dtype, 3 + 2 * i), numbers(shape, dtype, 4 + 2 * i)) for i in range(count)]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """N(0, 1) of type `dtype`, bfloat16 as its bits (uint16). One block of random numbers, from another place for each seed,
    again and again: gigabytes of fresh ones would take longer than what is measured."""
    block = _block(dtype)
    result = np.empty(math.prod(shape), block.dtype)
    done, place = 0, seed * _STEP % _BLOCK
    while done < result.size:
        piece = block[place : place + result.size - done]
        result[done : done + piece.size] = piece
        done, place = done + piece.size, 0
    return result.reshape(shape)


def widened(array: np.ndarray) -> np.ndarray:
    """float32; uint16 are bits of bfloat16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def cache_count(work: AttentionWork, dtype: str, rotation_bytes: int) -> int:
    """How many caches to use in turn so that calls read `rotation_bytes`, as far as memory allows. 0: not even one fits."""
    stored, free = work.stored_bytes(dtype), free_memory()
    wanted = 1 if work.phase == "prefill" else math.ceil(rotation_bytes / work.cache_bytes(dtype))
    return wanted if free is None else min(wanted, int(free * MEMORY_SHARE / stored))


def rotation_bytes() -> int:
    """Bytes that calls are to read before they come back to the first cache."""
    return max(ROTATION_BYTES, L3_TIMES * (l3_bytes() or 0))


def cold(work: AttentionWork, dtype: str, count: int) -> bool:
    """Do calls on `count` caches in turn read so much that none of it is still in the L3 when it is read again?"""
    l3 = l3_bytes()
    return count * work.cache_bytes(dtype) >= (ROTATION_BYTES if l3 is None else L3_TIMES * l3)


def l3_bytes() -> int | None:
    """The L3 caches of the CPUs that this process may use, together. None: the system does not say."""
    sizes = {}
    for cpu in os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ():
        for index in _SYSFS.glob(f"cpu{cpu}/cache/index*"):
            try:
                level, shared, size = ((index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            except OSError:
                continue
            if level == "3" and size.endswith("K"):
                sizes[shared] = int(size[:-1]) << 10
    return sum(sizes.values()) or None


def free_memory() -> int | None:
    """Bytes that can be used without swapping. None: the system does not say."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


@functools.cache
def _block(dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(_BLOCK, dtype=np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == "float16" else np.float32)
