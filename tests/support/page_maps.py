"""Made-up page maps: runs (bytes, node), node None where it is not known."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

Runs = list[tuple[int, int | None]]


def interleaved(size: int, granule: int, nodes: int, phase: int = 0, first: int = 0) -> Runs:
    """Granules on one node after the other, from node `first` on; the range begins `phase` bytes into a granule."""
    runs, at, node = [], 0, first
    while at < size:
        length = min(granule - (phase if at == 0 else 0), size - at)
        runs.append((length, node % nodes))
        at, node = at + length, node + 1
    return runs


def scattered(size: int, granule: int, nodes: int, rng: np.random.Generator, unknown: float = 0.0) -> Runs:
    """Each granule on any node, without a rule; a share of them unknown."""
    runs, at = [], 0
    while at < size:
        length = min(granule, size - at)
        runs.append((length, None if rng.random() < unknown else int(rng.integers(nodes))))
        at += length
    return runs


def mixed(size: int, granules: tuple[int, ...], nodes: int, rng: np.random.Generator) -> Runs:
    """Granules of several sizes, as huge pages with unaligned ends and file pages have them."""
    runs, at, node = [], 0, 0
    while at < size:
        length = min(int(rng.choice(granules)), size - at)
        runs.append((length, node % nodes))
        at, node = at + length, node + 1
    return runs


def one_node(size: int, node: int = 0) -> Runs:
    return [(size, node)] if size else []


def node_of_bytes(runs: Runs) -> np.ndarray:
    """The node of every byte; -1 where it is not known."""
    return np.repeat([-1 if node is None else node for _, node in runs], [length for length, _ in runs])


@st.composite
def page_maps(draw, size: int, granules=(64, 256, 1024, 4096)) -> tuple[Runs, int]:
    """Any map of a range of this size, and the number of its nodes."""
    nodes = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    granule = draw(st.sampled_from(granules))
    kind = draw(st.sampled_from(["interleaved", "scattered", "unknown", "mixed", "one"]))
    if kind == "interleaved":
        return interleaved(size, granule, nodes, draw(st.integers(0, granule - 1)), draw(st.integers(0, nodes - 1))), nodes
    if kind == "scattered":
        return scattered(size, granule, nodes, rng), nodes
    if kind == "unknown":
        return scattered(size, granule, nodes, rng, unknown=0.3), nodes
    if kind == "mixed":
        return mixed(size, tuple(granules), nodes, rng), nodes
    return one_node(size, draw(st.integers(0, nodes - 1))), nodes
