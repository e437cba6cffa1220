"""What the kernel says about the machine."""

from __future__ import annotations

import os
from typing import Any

from memory import NODES, parse_list


def run() -> dict[str, Any]:
    """Of each node: id, CPUs, kilobytes, distances."""
    nodes = []
    for node in parse_list((NODES / "online").read_text()):
        folder = NODES / f"node{node}"
        (total,) = (line.split()[3] for line in (folder / "meminfo").read_text().splitlines() if "MemTotal" in line)
        nodes.append(
            {
                "id": node,
                "cpus": parse_list((folder / "cpulist").read_text()),
                "kilobytes": int(total),
                "distances": [int(distance) for distance in (folder / "distance").read_text().split()],
            }
        )
    return {"nodes": nodes, "kernel": os.uname().release}
