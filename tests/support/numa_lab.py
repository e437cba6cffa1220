"""The NUMA lab from the host's side: machines, cases, and what the counter saw. tests/numa/guest is the other side."""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1]
VM = TESTS / "numa" / "lab" / "numa_vm.sh"
GUEST = TESTS / "numa" / "guest"
# Seconds: of one case, and of a boot with all its cases.
CASE_LIMIT, BOOT_LIMIT = 120, 1500


@dataclass(frozen=True)
class Machine:
    """What numa_vm.sh is asked for.

    Attributes:
        cpus, megabytes: of each node.
        distances: of pairs of nodes, where it is not 20.
    """

    name: str
    cpus: tuple[int, ...]
    megabytes: tuple[int, ...]
    distances: dict[tuple[int, int], int] = field(default_factory=dict, hash=False)

    @property
    def nodes(self) -> range:
        return range(len(self.cpus))

    @property
    def node_of_cpu(self) -> list[int]:
        return [node for node, count in enumerate(self.cpus) for _ in range(count)]

    def cpus_of(self, *nodes: int) -> list[int]:
        return [cpu for cpu, node in enumerate(self.node_of_cpu) if node in nodes]

    def distance(self, i: int, j: int) -> int:
        return 10 if i == j else self.distances.get((min(i, j), max(i, j)), 20)

    def arguments(self) -> list[str]:
        """Options of numa_vm.sh."""
        distances = [["--distance", f"{i}-{j}={distance}"] for (i, j), distance in self.distances.items()]
        return [
            "--nodes", str(len(self.cpus)), "--cpus", ",".join(map(str, self.cpus)),
            "--mem", ",".join(f"{size}M" if size else "0" for size in self.megabytes), *sum(distances, []),
        ]  # fmt: skip


ONE = Machine("one node", (2,), (2048,))
TWO = Machine("two nodes", (2, 2), (1280, 1280))
THREE = Machine("three nodes, uneven", (1, 2, 1), (1024, 768, 896), {(0, 1): 15, (0, 2): 31})
FOUR = Machine("four nodes", (1, 1, 1, 1), (768, 768, 768, 768))
ODD = Machine("one node without memory, one without CPUs", (1, 2, 1, 0), (1024, 768, 0, 512))


class Case:
    """One thing to be done in a guest: a kind of tests/numa/guest/cases.py with its arguments.

    Attributes:
        block: of the counter, for what this case counts.
    """

    def __init__(self, machine: Machine, kind: str, name: str, **arguments: Any) -> None:
        self.machine, self.kind, self.name, self.arguments = machine, kind, name, arguments

    def __str__(self) -> str:
        return f"{self.machine.name}: {self.name}"


@dataclass(frozen=True)
class Counts:
    """Bytes that each CPU loaded from and stored to pages of each node, int64 [CPUs, nodes]."""

    load: np.ndarray
    store: np.ndarray


def read_counts(path: Path, machine: Machine) -> dict[int, Counts]:
    """The blocks of a file that numa_vm.sh --count wrote."""
    shape = (len(machine.node_of_cpu), len(machine.cpus))
    blocks: dict[int, Counts] = {}
    for line in path.read_text().splitlines():
        word, *numbers = line.split()
        if word == "block":
            current = blocks[int(numbers[0])] = Counts(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        elif word == "cpu":
            cpu, direction, *counts = numbers
            getattr(current, direction)[int(cpu)] = [int(count) for count in counts]
    return blocks


@functools.cache
def why_not() -> str:
    """Why the lab cannot run here; empty if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"it emulates x86-64 Linux over the host's own files, and this is {platform.machine()} {platform.system()}"
    packages = {
        "qemu-system-x86_64": "qemu-system-x86", "numactl": "numactl", "mkfs.ext4": "e2fsprogs", "xz": "xz-utils",
        "zstd": "zstd",
    }  # fmt: skip
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [package for tool, package in packages.items() if not shutil.which(tool, path=path)]
    if missing:
        return f"missing: {' '.join(missing)} (apt-get install {' '.join(missing)})"
    fetched = subprocess.run([VM, "--fetch"], capture_output=True, text=True)
    return "" if fetched.returncode == 0 else f"no kernel to boot: {fetched.stderr.strip()}"


class BootFailed(AssertionError):
    """The guest did not run the job to its end."""


def boot(machine: Machine, jobs: list[dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[int, Counts]]:
    """Runs jobs in one boot, under ``numactl --interleave=all``: their results by name, and the counter's blocks.

    The machine has a disk with ext4 at /mnt/scratch.

    Raises:
        BootFailed: with what came instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, counts = Path(folder) / "job.json", Path(folder) / "counts"
        job.write_text(json.dumps({"cases": jobs, "seconds": CASE_LIMIT}))
        command = [
            VM, *machine.arguments(), "--scratch", "1G", "--count", counts, "--timeout", str(BOOT_LIMIT), "--",
            "numactl", "--interleave=all", sys.executable, GUEST / "main.py", job,
        ]  # fmt: skip
        variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.run(command, env=variables, capture_output=True, text=True)
        results = {result["case"]: result for result in map(json.loads, process.stdout.splitlines())}
        if process.returncode or len(results) != len(jobs):
            done = f"{len(results)} of {len(jobs)} cases done"
            raise BootFailed(f"{machine.name}: status {process.returncode}, {done}\n{process.stderr[-4000:]}")
        return results, read_counts(counts, machine)
