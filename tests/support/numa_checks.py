"""What the NUMA lab's tests ask of a session's case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .moe_native import assert_within
from .numa_lab import Case, Counts, Machine
from .numa_models import NumaModel

# Of all bytes of weights that are loaded, those that may come from another node than the thread's.
MOST_REMOTE = 0.01


def assert_right(y: str, model: NumaModel) -> None:
    """An output as the guest reports it lies within its bound."""
    assert_within(model.decode(y), model.expected())


def chosen_bytes(model: NumaModel) -> int:
    """Bytes of the matrices of experts that a run chooses: the least that it has to read."""
    experts = len(np.unique(model.tokens.ids))
    attributes, (_, kind) = model.weights.attributes, model.weights.windows[0]
    size = {"float": 4, "float16": 2, "bfloat16": 2}[kind]
    return experts * 3 * attributes["hidden_size"] * attributes["intermediate_size"] * size


def remote_shares(runs: Sequence[Counts], machine: Machine, cpus: list[int] | None = None) -> np.ndarray:
    """Of each run the share of loaded bytes that came from another node, though both the page's node and the thread's could do
    better.

    Left out is what nothing can be done about: pages of nodes on which no thread runs, and threads on nodes without memory.

    Args:
        cpus: those with a thread; None: all.
    """
    node_of_cpu = np.array(machine.node_of_cpu)
    cpus = list(range(len(node_of_cpu))) if cpus is None else cpus
    readers = [cpu for cpu in cpus if machine.megabytes[node_of_cpu[cpu]]]
    nodes = sorted({int(node_of_cpu[cpu]) for cpu in readers})
    local = node_of_cpu[readers][:, None] == np.array(nodes)[None, :]
    shares = []
    for run in runs:
        load = run.load[np.ix_(readers, nodes)]
        assert load.sum() > 0, "nothing was read"
        shares.append(load[~local].sum() / load.sum())
    return np.array(shares)


def assert_local(shares: np.ndarray) -> None:
    """Judged by the quietest run. Every run reads what the plan makes it read; on top of that, where the host takes an emulated
    CPU's time away in the middle of a run, other nodes' threads rightly help, and read what is not theirs."""
    assert shares.min() <= MOST_REMOTE


def describe(case: Case, counts: Counts, pages: dict[str, int], shares: np.ndarray) -> str:
    """One line of what was counted."""
    placed = ", ".join(f"{count} on {node}" if int(node) >= 0 else f"{count} absent" for node, count in pages.items())
    by_node = np.zeros((len(case.machine.cpus), len(case.machine.cpus)), np.int64)
    np.add.at(by_node, np.array(case.machine.node_of_cpu), counts.load)
    loaded = " / ".join(" ".join(f"{size / 1e6:.1f}" for size in row) for row in by_node)
    return f"{100 * np.median(shares):6.2f} % remote (median; best {100 * shares.min():.2f} %)  {case}; pages: {placed}; MB loaded in all runs by each node's threads, from each: {loaded}"
