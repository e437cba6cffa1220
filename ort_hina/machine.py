"""What this machine offers to the operators, and what they chose from it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FORCE_ISA_VARIABLE = "ORT_HINA_ISA"
_SYSFS = Path("/sys")


@dataclass(frozen=True)
class IsaLevel:
    """A set of kernels: can they run here, and why (not)."""

    name: str
    available: bool
    reason: str


@dataclass(frozen=True)
class NumaNode:
    """A memory node, the CPUs of this process that are near to it, and its memory in bytes (None: unknown)."""

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None


@dataclass(frozen=True)
class MachineInfo:
    """The answer of `machine`.

    Attributes:
        isa: the kernels in use: ``avx512``, ``avx2`` or ``portable``.
        isa_reason: why these.
        isa_levels: all that this build has, best first.
        forced_isa: the value of ``ORT_HINA_ISA``, or None.
        threads: CPUs that this process may run on.
        physical_cores: cores that these CPUs belong to; None where the system does not say.
        nodes: NUMA nodes with memory or CPUs; empty where the system does not say.
        page_size: bytes.
        transparent_huge_pages: ``always``, ``madvise``, ``never``; None where the system does not say.
    """

    isa: str
    isa_reason: str
    isa_levels: tuple[IsaLevel, ...]
    forced_isa: str | None
    threads: int
    physical_cores: int | None
    nodes: tuple[NumaNode, ...]
    page_size: int
    transparent_huge_pages: str | None

    def to_json(self) -> str:
        """The same facts as a JSON object, with the attributes' names as keys."""
        return json.dumps(asdict(self), indent=2)

    def to_text(self) -> str:
        """The same facts as lines for a person."""
        return "\n".join(
            [
                f"kernels             {self.isa} ({self.isa_reason})",
                *(_isa_line(level) for level in self.isa_levels),
                f"{FORCE_ISA_VARIABLE:<20}{self.forced_isa or 'not set'}",
                f"usable CPUs         {self.threads}",
                f"physical cores      {_or_unknown(self.physical_cores)}",
                f"NUMA nodes          {len(self.nodes) or 'unknown'}",
                *(_node_line(node) for node in self.nodes),
                f"page size           {self.page_size} bytes",
                f"huge pages          {_or_unknown(self.transparent_huge_pages)}",
            ]
        )


def machine() -> MachineInfo:
    """Looks at the CPU, at the CPUs that this process may use, and at the memory nodes. Takes a few milliseconds.

    Raises:
        OrtHinaError: the compiled module is not built, or ``ORT_HINA_ISA`` names kernels that cannot run here.
    """
    levels, chosen = _kernels()
    cpus = _usable_cpus()
    return MachineInfo(
        isa=chosen["name"],
        isa_reason=chosen["reason"],
        isa_levels=tuple(IsaLevel(level["name"], level["available"], level["reason"]) for level in levels),
        forced_isa=os.environ.get(FORCE_ISA_VARIABLE) or None,
        threads=len(cpus),
        physical_cores=_physical_cores(_SYSFS, cpus),
        nodes=_numa_nodes(_SYSFS, cpus),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        transparent_huge_pages=_transparent_huge_pages(_SYSFS),
    )


def _kernels() -> tuple[list[dict], dict]:
    """All sets of kernels, best first, and the chosen one: from the library's own dispatch, not guessed again here."""
    from .errors import OrtHinaError
    from .library import native_module

    _native = native_module()
    try:
        return _native.isa_levels(), _native.chosen_isa()
    except (RuntimeError, ValueError) as error:
        raise OrtHinaError(str(error)) from error


def _usable_cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _physical_cores(sysfs: Path, cpus: tuple[int, ...]) -> int | None:
    """Different (package, core) pairs among `cpus`: core ids repeat from package to package."""
    cores = set()
    for cpu in cpus:
        topology = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
        pair = (_read(topology / "physical_package_id"), _read(topology / "core_id"))
        if None in pair:
            return None
        cores.add(pair)
    return len(cores)


def _numa_nodes(sysfs: Path, cpus: tuple[int, ...]) -> tuple[NumaNode, ...]:
    online = _parse_list(_read(sysfs / "devices/system/node/online"))
    return tuple(_numa_node(sysfs / f"devices/system/node/node{number}", number, cpus) for number in online)


def _numa_node(folder: Path, number: int, cpus: tuple[int, ...]) -> NumaNode:
    near = _parse_list(_read(folder / "cpulist"))
    memory = None
    for line in (_read(folder / "meminfo") or "").splitlines():
        if "MemTotal:" in line:  # "Node 0 MemTotal:  24737912 kB"
            memory = int(line.split()[-2]) * 1024
    return NumaNode(number, tuple(cpu for cpu in near if cpu in cpus), memory)


def _transparent_huge_pages(sysfs: Path) -> str | None:
    """The word in brackets of ``always [madvise] never``."""
    text = _read(sysfs / "kernel/mm/transparent_hugepage/enabled")
    if text is None or "[" not in text:
        return None
    return text.split("[", 1)[1].split("]", 1)[0]


def _parse_list(text: str | None) -> list[int]:
    """``0-2,8`` → [0, 1, 2, 8]; nothing → []."""
    numbers: list[int] = []
    for part in (text or "").split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _format_list(numbers: tuple[int, ...]) -> str:
    """[0, 1, 2, 8] → ``0-2,8``: a node of a server has a hundred CPUs."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read(path: Path) -> str | None:
    """The text of a file of the kernel, or None: containers hide /sys, and other systems have none."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _isa_line(level: IsaLevel) -> str:
    return f"  {level.name:<18}{'available' if level.available else 'not available'} ({level.reason})"


def _node_line(node: NumaNode) -> str:
    cpus = f"CPUs {_format_list(node.cpus)}" if node.cpus else "no usable CPUs"
    memory = "memory unknown" if node.memory_bytes is None else f"{node.memory_bytes / 2**30:.1f} GiB"
    return f"  node {node.id:<13}{cpus}, {memory}"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
