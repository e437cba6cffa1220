"""Trees like the kernel's /sys, of machines that are not this one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class FakeNode:
    """`cpus` as the kernel writes them; sizes in KiB."""

    id: int
    cpus: str
    memory: int = 32 << 20
    free: int = 16 << 20
    cache: int = 4 << 20


def write_sysfs(
    root: Path,
    nodes: list[FakeNode],
    *,
    siblings: list[str] = (),
    online_cpus: str | None = None,
    distances: bool = True,
) -> Path:
    """The tree; `siblings`: the CPUs of each core, as the kernel writes them. Distances between nodes are 10 + 3 |i - j|."""
    devices = root / "sys" / "devices" / "system"
    _write(devices / "node/online", ",".join(str(node.id) for node in nodes))
    for i, node in enumerate(nodes):
        folder = devices / f"node/node{node.id}"
        _write(folder / "cpulist", node.cpus)
        if distances:
            _write(folder / "distance", " ".join(str(10 + 3 * abs(i - j)) for j in range(len(nodes))))
        lines = {"MemTotal": node.memory, "MemFree": node.free, "Active(file)": node.cache, "Inactive(file)": node.cache}
        _write(folder / "meminfo", "\n".join(f"Node {node.id} {key}: {value:>12} kB" for key, value in lines.items()))
    for core in siblings:
        for cpu in numbers(core):
            _write(devices / f"cpu/cpu{cpu}/topology/thread_siblings_list", core)
    if online_cpus is not None:
        _write(devices / "cpu/online", online_cpus)
    return root / "sys"


def write_status(root: Path, memory_nodes: str) -> Path:
    """A file like /proc/self/status of a process that may allocate memory on these nodes."""
    path = root / "status"
    _write(path, f"Name:\tpython\nMems_allowed:\t00000000,00000001\nMems_allowed_list:\t{memory_nodes}\nThreads:\t3")
    return path


def numbers(text: str) -> list[int]:
    """``0-2,8`` → [0, 1, 2, 8]."""
    parts = (part.partition("-") for part in text.split(",") if part)
    return [n for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
