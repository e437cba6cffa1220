"""Key and value caches on made-up NUMA nodes: which node each key is given to, and calls on one buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ort_hina import _native

from .attention_native import Answer, decoded, sizes_of, tensors_of, types_of
from .attention_reference import AttentionCase
from .elements import size_of

KEYS_OF_NODE = 8
"""Keys that are given to a node together."""

Pages = Callable[[np.ndarray], np.ndarray]
"""Numbers of pages to their nodes; -1: not known."""


def nodes_of_keys(key_bytes: np.ndarray, value_bytes: np.ndarray, keys: int) -> np.ndarray:
    """The node of each of `keys` keys; -1 everywhere where nothing is known.

    Args:
        key_bytes: [rows, bytes of a row], the node of each byte of what was asked about; -1: not known.
        value_bytes: the same of values.
    """
    found = np.full(keys, -1)
    for begin in range(0, min(len(key_bytes), len(value_bytes)) // KEYS_OF_NODE * KEYS_OF_NODE, KEYS_OF_NODE):
        block = slice(begin, begin + KEYS_OF_NODE)
        nodes = np.concatenate([key_bytes[block].ravel(), value_bytes[block].ravel()])
        names, first, count = np.unique(nodes[nodes >= 0], return_index=True, return_counts=True)
        if len(names):
            found[block] = names[np.lexsort((first, -count))[0]]
    known = np.flatnonzero(found >= 0)
    if len(known):
        before = np.searchsorted(known, np.arange(keys), side="right") - 1
        found = found[known[np.maximum(before, 0)]]
    return found


class CachesInPlace:
    """The tensors of a case whose caches stay where they are, on made-up pages."""

    def __init__(self, case: AttentionCase, page_bytes: int, pages: Pages):
        self.case, self.page_bytes, self.pages = case, page_bytes, pages
        self.tensors = tensors_of(case)
        self.asked: list[tuple[int, int]] = []
        """(address, pages) of each question"""

    def node(self, isa: str, nodes: int, threads: Sequence[int | None], least_bytes: int = 0, **rest: Any):
        """A node on a machine of so many nodes; `threads`: of each participant of a region."""
        numa = {"nodes": nodes, "threads": list(threads), "page_bytes": self.page_bytes, "pages": self._answer}
        numa |= {"least_bytes": least_bytes} | rest
        return _native.GroupQueryAttention(self.case.attributes(), isa, numa)

    def run(self, node, threads: int = 1) -> Answer:
        """Of a call in place."""
        case = self.case
        return decoded(case, node.run(case.kind, sizes_of(case), self.tensors, threads, True, types_of(case)))

    def cuts(self) -> int:
        """The most stretches of keys on one node that a head has."""
        stretches = [
            1 + np.count_nonzero(np.diff(self.node_of_keys(b, head)))
            for b in range(len(self.case.query))
            for head in range(self.case.kv_heads)
        ]
        return max(stretches)

    def node_of_keys(self, batch: int, head: int) -> np.ndarray:
        """[keys of the sequence], as a call knows them that asked about all rows of the past."""
        past, rows = self.case.past_and_rows(batch)
        caches = (
            self._node_of_bytes(name, size, batch * self.case.kv_heads + head, past)
            for name, size in (("past_key", self.case.key.shape[3]), ("past_value", self.case.value.shape[3]))
        )
        return nodes_of_keys(*caches, past + rows)

    def _node_of_bytes(self, name: str, size: int, head: int, past: int) -> np.ndarray:
        row, length = size * size_of(self.case.kind), self.case.past_length
        begin = self.tensors[name].ctypes.data + head * length * row
        if past == 0:
            return np.zeros((0, row), int)
        end = min(-(-(begin + past * row) // self.page_bytes) * self.page_bytes, begin + length * row)
        rows = (end - begin) // row
        addresses = begin + np.arange(rows * row)
        return self.pages(addresses // self.page_bytes).reshape(rows, row)

    def _answer(self, first: int, count: int) -> list[int | None]:
        assert first % self.page_bytes == 0 and count > 0
        self.asked.append((first, count))
        numbers = first // self.page_bytes + np.arange(count)
        return [None if node < 0 else int(node) for node in self.pages(numbers)]


def in_turn(nodes: int) -> Pages:
    """As under an interleave policy."""
    return lambda numbers: numbers % nodes


def anywhere(nodes: int, seed: int, unknown: float = 0.0) -> Pages:
    """Without a rule; a share of the pages unknown."""

    def pages(numbers: np.ndarray) -> np.ndarray:
        mixed = (numbers.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(33)
        return np.where(mixed % 1000 < unknown * 1000, -1, (mixed // 1000 % nodes).astype(int))

    return pages


def all_on(node: int) -> Pages:
    """-1: nothing is known."""
    return lambda numbers: np.full(len(numbers), node)
