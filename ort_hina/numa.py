"""Memory nodes: what this process may use of them, and threads of ONNX Runtime pinned to their cores.

    from ort_hina import numa

    options = onnxruntime.SessionOptions()
    numa.pin_threads(options)
    ort_hina.register(options)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import OrtHinaError
from .library import native_module

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

# ONNX Runtime's own: the CPUs of each thread that its pool starts.
AFFINITY_ENTRY = "session.intra_op_thread_affinities"


@dataclass(frozen=True)
class Node:
    """A memory node.

    Attributes:
        id: the system's number.
        cpus: CPUs of the node that this process may use, ascending.
        memory_allowed: whether this process may allocate memory on it.
        memory_bytes: of the node; 0: it has none, or the system does not say.
        free_bytes: of these, unused or page cache that can be given back.
        distances: to each node, by its place in `Topology.nodes`; 10 is the node's own.
    """

    id: int
    cpus: tuple[int, ...]
    memory_allowed: bool
    memory_bytes: int
    free_bytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The nodes of a machine as a process may use them.

    Attributes:
        nodes: ascending by id; at least one.
        cores: the CPUs of each physical core that this process may use.
    """

    nodes: tuple[Node, ...]
    cores: tuple[tuple[int, ...], ...]

    @property
    def multi_node(self) -> bool:
        """Whether the process may use CPUs of several nodes. If not, placement makes no difference."""
        return sum(bool(node.cpus) for node in self.nodes) > 1

    def cores_of(self, node: Node) -> tuple[tuple[int, ...], ...]:
        """The cores of which the first CPU is near to `node`."""
        return tuple(core for core in self.cores if core[0] in node.cpus)


def topology(
    sysfs: str | os.PathLike = "/sys",
    status: str | os.PathLike = "/proc/self/status",
    cpus: Sequence[int] | None = None,
) -> Topology:
    """Looks at the machine. It works everywhere: a system that says nothing about nodes has one, with all CPUs.

    Args:
        sysfs, status: where the kernel's files are.
        cpus: that the process may use. None: those that its threads may run on, all threads together.
    """
    found = native_module().topology(os.fspath(sysfs), os.fspath(status), list(cpus or ()))
    nodes = (Node(**{key: tuple(value) if isinstance(value, list) else value for key, value in node.items()})
             for node in found["nodes"])  # fmt: skip
    return Topology(tuple(nodes), tuple(map(tuple, found["cores"])))


def thread_cpus(threads: int | None = None, topology: Topology | None = None) -> tuple[int, ...]:
    """A CPU for each thread of a pool: one thread for each physical core, the threads of a node side by side.

    Fewer threads than cores are spread over the nodes in proportion to their cores, so that the memory of all nodes is read
    by threads that are near to it.

    Args:
        threads: how many. None: as many as there are cores. More than there are cores are reduced to these.
        topology: None: this machine's.

    Raises:
        ValueError: `threads` is less than 1.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    machine = topology or _this_machine()
    by_node = [[core[0] for core in machine.cores_of(node)] for node in machine.nodes]
    without_node = {core[0] for core in machine.cores} - {cpu for cpus in by_node for cpu in cpus}
    by_node.append(sorted(without_node))
    count = sum(map(len, by_node))
    counts = _proportional(min(threads or count, count), [len(cpus) for cpus in by_node])
    return tuple(cpu for cpus, number in zip(by_node, counts, strict=True) for cpu in cpus[:number])


def _proportional(total: int, sizes: list[int]) -> list[int]:
    """`total` in parts like `sizes`: what rounding down leaves goes to the largest remainders, the first of equal ones."""
    whole = sum(sizes)
    parts = [total * size // whole for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda i: -(total * sizes[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def thread_affinities(threads: int | None = None, topology: Topology | None = None) -> str:
    """The value of ONNX Runtime's entry ``session.intra_op_thread_affinities`` for the CPUs of `thread_cpus`.

    The first thread of a pool is the one that calls `run`. ONNX Runtime does not pin it, so the value begins with the second:
    for n threads it names n - 1 CPUs, which ONNX Runtime counts from 1. Empty for one thread.

    Raises:
        ValueError: `threads` is less than 1.
    """
    return _entry(thread_cpus(threads, topology))


def _entry(cpus: Sequence[int]) -> str:
    return ";".join(str(cpu + 1) for cpu in cpus[1:])


def pin_threads(
    session_options: SessionOptions,
    threads: int | None = None,
    *,
    caller: bool = False,
    topology: Topology | None = None,
) -> tuple[int, ...]:
    """Lets the sessions of `session_options` run one thread on each physical core, each pinned to a CPU of its own.

    Sets `intra_op_num_threads` and the entry of `thread_affinities`. Call it before `ort_hina.register`, which tells the
    operators the number of threads.

    Args:
        session_options: the options.
        threads: how many, as for `thread_cpus`.
        caller: pins the calling thread, too, to the first CPU. Call `run` from this thread then. Threads that it starts
            later inherit that, unless they choose their own.
        topology: None: this machine's.

    Returns:
        The CPU of each thread, the calling one first.

    Raises:
        ValueError: `threads` is less than 1.
        OrtHinaError: the calling thread cannot be pinned.
    """
    cpus = thread_cpus(threads, topology)
    session_options.intra_op_num_threads = len(cpus)
    if len(cpus) > 1:
        session_options.add_session_config_entry(AFFINITY_ENTRY, _entry(cpus))
    if caller:
        try:
            os.sched_setaffinity(0, cpus[:1])
        except OSError as error:
            raise OrtHinaError(f"the calling thread cannot be pinned to CPU {cpus[0]}: {error}") from error
    return cpus


# The parameters `topology` above hide the function.
_this_machine = topology
