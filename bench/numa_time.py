"""Bytes of memory nodes → seconds: what a step takes at least, and what it takes if nothing overlaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.numa_bytes import ELEMENT, Step


@dataclass(frozen=True)
class Machine:
    """`local` and `cross` in bytes/s: what one node reads from its own memory, and from all others together. `peak` in
    operations/s of bfloat16, all nodes together."""

    name: str
    nodes: int
    cores: int  # of each node
    local: float
    cross: float
    peak: float


# Table 2 and section 8.5 of the HiNa-MoE paper. It has neither cores nor peak of the 9462: cores and 2.7 GHz are those of
# the data sheet, with 1024 operations a cycle.
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("6430", 2, 32, 234e9, 95e9, 134.4e12),
        Machine("6448H", 4, 32, 158e9, 32e9, 300.4e12),
        Machine("9462", 2, 32, 425e9, 89e9, 64 * 2.7e9 * 1024),
    )
}

FORMULA = """\
step   = max over nodes r of max(read(r), served(r), compute(r)); a layer = gate and up, then down
read(r)    overlapped: max(near, far)      one after the other: (near + far) / balance(r)
  near     = (local weights + partial sums) / local bandwidth
  far      = (remote weights + partial sums) / cross bandwidth of a node
             [--cross pair: the most that r reads from one other node / cross bandwidth]
served(r)  = all that is read from r's memory, and its partial sums / local bandwidth
compute(r) = 2 · m · weights that r reads / (peak / nodes) / balance(r)
partial sums: parts · m · outputs · 4 bytes, written once to the own node, read once evenly from all; shared equally
balance(r) = mean bytes of r's cores / most bytes of one, items taken in order by whichever core is free"""


def step_seconds(step: Step, machine: Machine, m: int, overlapped: bool, cross: str = "node") -> float:
    """Of one step for m tokens of each expert. `overlapped`: local and remote reads take place at the same time, and cores
    that have nothing left to do leave their part of the bandwidth to the others; else neither. `cross`: node, or pair where
    the cross bandwidth is that between each two nodes."""
    n = machine.nodes
    sums = step.sums * m / n  # written by each node, and read by each
    read = step.traffic.sum(1)
    local, remote = np.diag(step.traffic) + sums + sums / n, step.remote() + sums * (n - 1) / n
    if cross == "pair":
        others = step.traffic * (1 - np.eye(n))
        remote = others.max(1) + sums / n
    near, far = local / machine.local, remote / machine.cross
    reading = np.maximum(near, far) if overlapped else (near + far) / step.balance
    served = (step.traffic.sum(0) + 2 * sums) / machine.local
    compute = 2 * m * (read / ELEMENT) / (machine.peak / n) / step.balance
    return float(max(reading.max(), served.max(), compute.max()))


def layer_seconds(steps: tuple[Step, ...], machine: Machine, m: int, overlapped: bool, cross: str = "node") -> float:
    """No step begins before the one before it has ended."""
    return sum(step_seconds(step, machine, m, overlapped, cross) for step in steps)
