"""Reads and writes known amounts of each node's memory from each CPU, counted."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import counter
import numpy as np
from memory import PAGE, POLICY_INTERLEAVE, anonymous, memory_nodes, page_nodes, set_policy_of

PAGES = 64


def run() -> dict[str, Any]:
    """``expected``: [block, CPU, "load" or "store", node, bytes], all that is to be counted."""
    nodes = memory_nodes()
    address = anonymous(PAGES * PAGE)
    set_policy_of(address, PAGES * PAGE, POLICY_INTERLEAVE, nodes)
    data = np.frombuffer((ctypes.c_uint8 * (PAGES * PAGE)).from_address(address), np.uint8)
    data[:] = 1
    where = page_nodes(address, data.size)
    expected = []
    block = 0
    for cpu in sorted(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, {cpu})
        for node in nodes:
            block += 1
            pages = np.flatnonzero(where == node)
            with counter.counting(block, [(address, data.size)]):
                for page in pages:
                    data[page * PAGE : (page + 1) * PAGE].view(np.uint64).sum()
            expected.append([block, cpu, "load", node, len(pages) * PAGE])
    block += 1
    # Two ranges; what lies between them does not count.
    with counter.counting(block, [(address, 100), (address + 2 * PAGE, PAGE)]):
        data[: 3 * PAGE] = 2
    expected.extend([block, cpu, "store", int(where[page]), PAGE] for page in (0, 2))
    return {"expected": expected}
