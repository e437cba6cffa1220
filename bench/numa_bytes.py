"""Which bytes of an MoE layer's weights each memory node reads from where: counted from page map and partition."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

import numpy as np

from ort_hina import _native
from ort_hina.benchmark.shapes import MoeShape

ELEMENT = 2  # bytes of a bfloat16
LAYOUTS = ("nk", "kn")
# As csrc/operators/moe_nodes.cc cuts for bfloat16 kernels.
COLUMN_STEP = {"nk": 32, "kn": 8}
# As csrc/operators/moe_nodes.cc limits partial sums: to this share of the weights, and tokens. So few tokens have them anyway.
SUMS_SHARE, MOST_TOKENS, FEW_ANYWAY = 8, 256, 16
# As the AMX kernels cut where nothing is cut by nodes: blocks of so many outputs, wider ones of [K,N] up to so many tokens.
OUTPUT_STEP, FEW_TOKENS = 32, 32


@dataclass(frozen=True)
class Pages:
    """Even interleaving: byte b lies on node b // granule modulo nodes."""

    nodes: int
    granule: int

    @property
    def period(self) -> int:
        return self.granule * self.nodes

    def runs(self, end: int) -> list[tuple[int, int]]:
        """(bytes, node) of the granules that hold the bytes from 0 to `end`."""
        return [(self.granule, i % self.nodes) for i in range(-(-end // self.granule))]


class NodeBytes:
    """How many of the bytes between two others lie on each node."""

    def __init__(self, runs: list[tuple[int, int]], nodes: int):
        lengths, self._node = np.array(runs, np.int64).T
        self._end = np.cumsum(lengths)
        own = np.zeros((len(runs), nodes), np.int64)
        own[np.arange(len(runs)), self._node] = lengths
        self._upto = np.cumsum(own, axis=0)

    def between(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Of the half-open ranges [begin, end): bytes, [ranges, nodes]."""
        return self._below(end) - self._below(begin)

    def _below(self, byte: np.ndarray) -> np.ndarray:
        run = np.minimum(np.searchsorted(self._end, byte, side="right"), len(self._end) - 1)
        below = self._upto[run]
        below[np.arange(len(byte)), self._node[run]] -= self._end[run] - byte
        return below


@dataclass(frozen=True)
class Matrix:
    """Rows × columns of bfloat16, the first byte `begin` bytes into a period of the interleaving."""

    begin: int
    rows: int
    columns: int
    layout: str  # nk: rows are outputs; kn: rows are inputs

    @property
    def row_bytes(self) -> int:
        return self.columns * ELEMENT

    @property
    def outputs(self) -> int:
        return self.rows if self.layout == "nk" else self.columns

    @property
    def inputs(self) -> int:
        return self.columns if self.layout == "nk" else self.rows

    def range(self, row, column) -> np.ndarray:
        return self.begin + np.asarray(row, np.int64) * self.row_bytes + np.asarray(column, np.int64) * ELEMENT


@dataclass(frozen=True)
class Items:
    """Work in the order in which it is taken: the node whose threads do each item, and what it reads from each node."""

    reader: np.ndarray  # [items]
    bytes: np.ndarray  # [items, nodes]

    @staticmethod
    def joined(parts: list[Items]) -> Items:
        return Items(np.concatenate([p.reader for p in parts]), np.concatenate([p.bytes for p in parts]))

    def traffic(self) -> np.ndarray:
        """Bytes, [reading node, node of the memory]."""
        traffic = np.zeros((self.bytes.shape[1],) * 2, np.int64)
        np.add.at(traffic, self.reader, self.bytes)
        return traffic

    def balance(self, cores: int) -> np.ndarray:
        """Of each node: the mean bytes of its cores over the most that one of them has, if each takes the next item when it
        has finished one. 1 where there is nothing to do."""
        size = self.bytes.sum(1)
        return np.array([_balance(size[self.reader == node], cores) for node in range(self.bytes.shape[1])])


def _balance(sizes: np.ndarray, cores: int) -> float:
    if not sizes.any():
        return 1.0
    loads = [0] * cores
    for size in sizes.tolist():
        heapq.heapreplace(loads, loads[0] + size)
    return float(sizes.sum() / cores / max(loads))


@dataclass(frozen=True)
class Partition:
    """The plan's partition of a matrix."""

    items: Items
    parts: int  # partial sums of an output
    tiles: np.ndarray  # [tiles, 5]: row, rows, column, columns, the node that has most of it

    def node_at(self, row: int, column: int) -> int:
        t = self.tiles
        holds = (t[:, 0] <= row) & (row < t[:, 0] + t[:, 1]) & (t[:, 2] <= column) & (column < t[:, 2] + t[:, 3])
        return int(t[holds.argmax(), 4])


@cache
def node_bytes(matrix: Matrix, pages: Pages) -> NodeBytes:
    return NodeBytes(pages.runs(matrix.begin + matrix.rows * matrix.row_bytes), pages.nodes)


@cache
def partition(matrix: Matrix, pages: Pages, threads: int) -> Partition:
    """As the operator cuts it (csrc/plan/node_partition.h), and what each item truly reads."""
    runs = pages.runs(matrix.begin + matrix.rows * matrix.row_bytes)
    plan = _native.node_partition(
        runs, matrix.begin, matrix.rows, matrix.columns, ELEMENT, None, matrix.layout == "kn", COLUMN_STEP[matrix.layout],
        threads,
    )  # fmt: skip
    begins, ends, numbers = [], [], []
    for number, item in enumerate(plan["items"]):
        for piece in item["pieces"]:
            rows = item["row"] + np.asarray(piece["rows"], np.int64)
            first, last = (item["column"] + column for column in piece["columns"])
            begins.append(matrix.range(rows, first))
            ends.append(matrix.range(rows, last))
            numbers.append(np.full(len(rows), number))
    count = len(plan["items"])
    read = np.zeros((count, pages.nodes), np.int64)
    ranges = node_bytes(matrix, pages).between(np.concatenate(begins), np.concatenate(ends))
    np.add.at(read, np.concatenate(numbers), ranges)
    items = Items(np.array([item["node"] for item in plan["items"]]), read)
    return Partition(items, plan["parts"], _tiles(plan["items"], read.sum(1)))


def _tiles(items: list[dict], sizes: np.ndarray) -> np.ndarray:
    most: dict[tuple, tuple] = {}
    for item, size in zip(items, sizes.tolist(), strict=True):
        tile = (item["row"], item["rows"], item["column"], item["columns"])
        if size > most.get(tile, (0, 0))[0]:
            most[tile] = (size, item["node"])
    return np.array([(*tile, node) for tile, (_, node) in most.items()])


@cache
def flat(matrix: Matrix, pages: Pages, cores: int) -> Items:
    """Equal shares of the rows for all threads, `cores` of them on each node. Neighbours are on different nodes, as where
    the next share goes to whoever is free."""
    threads = pages.nodes * cores
    edges = matrix.range(np.arange(threads + 1) * matrix.rows // threads, 0)
    return Items(np.arange(threads) % pages.nodes, node_bytes(matrix, pages).between(edges[:-1], edges[1:]))


@cache
def queued(matrix: Matrix, pages: Pages, blocks: tuple[tuple[int, int], ...], threads: int) -> Items:
    """Blocks of outputs (begin, count), whole, each read by the node that has most of the tile in its middle; nodes that
    have had an equal share leave the rest to others."""
    plan, of = partition(matrix, pages, threads), node_bytes(matrix, pages)
    wanted, read = [], []
    for begin, count in blocks:
        middle = begin + count // 2
        if matrix.layout == "nk":
            wanted.append(plan.node_at(middle, 0))
            ranges = of.between(matrix.range([begin], 0), matrix.range([begin + count], 0))
        else:
            wanted.append(plan.node_at(0, middle))
            rows = np.arange(matrix.rows)
            ranges = of.between(matrix.range(rows, begin), matrix.range(rows, begin + count))
        read.append(ranges.sum(0))
    read = np.array(read)
    return Items(_helped(wanted, read.sum(1), pages.nodes), read)


def _helped(wanted: list[int], sizes: np.ndarray, nodes: int) -> np.ndarray:
    readers, load, share = [], np.zeros(nodes), sizes.sum() / nodes
    for node, size in zip(wanted, sizes, strict=True):
        readers.append(node if load[node] + size / 2 <= share else int(load.argmin()))
        load[readers[-1]] += size
    return np.array(readers)


@dataclass(frozen=True)
class Step:
    """One step of a layer, all its experts."""

    traffic: np.ndarray  # bytes, [reading node, node of the memory]
    balance: np.ndarray  # [nodes], of cores
    sums: int  # bytes of partial sums for each token of an expert

    def remote(self) -> np.ndarray:
        """Bytes that each node reads from others."""
        return self.traffic.sum(1) - np.diag(self.traffic)


@dataclass(frozen=True)
class Layer:
    """The chosen experts of a layer in one window, which begins `phase` bytes into a granule: gate, up and down of one
    expert, then the next one's."""

    shape: MoeShape
    layout: str
    pages: Pages
    cores: int  # of each node
    phase: int

    def experts(self) -> list[tuple[Matrix, Matrix, Matrix]]:
        """gate, up and down of each chosen expert: k of all, at equal distances."""
        return [self._expert(i * self.shape.experts // self.shape.k) for i in range(self.shape.k)]

    def _expert(self, number: int) -> tuple[Matrix, Matrix, Matrix]:
        h, i = self.shape.hidden, self.shape.intermediate
        size = self.shape.matrix_elements() * ELEMENT
        sides = ((i, h), (i, h), (h, i))  # outputs, inputs
        begins = [(self.phase + (3 * number + place) * size) % self.pages.period for place in range(3)]
        return tuple(
            Matrix(begin, *(side if self.layout == "nk" else side[::-1]), self.layout)
            for begin, side in zip(begins, sides, strict=True)
        )

    @property
    def threads(self) -> int:
        return self.pages.nodes * self.cores

    def serves(self, m: int) -> bool:
        """Whether so many tokens are few enough for partial sums (MoeNodes::serves)."""

        def few(matrices: list[Matrix]) -> bool:
            parts = max(partition(matrix, self.pages, self.threads).parts for matrix in matrices)
            return parts * m * 4 * SUMS_SHARE <= matrices[0].inputs * ELEMENT

        if m <= FEW_ANYWAY:
            return True
        return m <= MOST_TOKENS and all(few([gate, up]) and few([down]) for gate, up, down in self.experts())

    def flat(self) -> tuple[Step, Step]:
        """gate and up, then down."""
        return self._steps(lambda matrix, _: flat(matrix, self.pages, self.cores), sums=False)

    def ours(self, m: int) -> tuple[Step, Step]:
        """gate and up, then down, for m tokens of each expert."""
        if self.serves(m):
            return self._steps(lambda matrix, _: partition(matrix, self.pages, self.threads).items, sums=True)
        blocks = self._blocks(m)
        return self._steps(lambda matrix, step: queued(matrix, self.pages, blocks[step], self.threads), sums=False)

    def _blocks(self, m: int) -> dict[str, tuple[tuple[int, int], ...]]:
        """Of one expert, where outputs are cut without regard to nodes (csrc/plan/work.h)."""
        form = {"cut_k": False, "n_step": OUTPUT_STEP, "k_chunk": 0, "wide": self.layout == "kn" and m <= FEW_TOKENS}
        rows, s = [min(m, MOST_TOKENS)] * self.shape.k, self.shape
        items = _native.plan_work(rows, form, form, sum(rows), s.hidden, s.intermediate, True, self.threads)
        return {
            step: tuple((i["begin"], i["count"]) for i in items if i["step"] == step and i["expert"] == 0)
            for step in ("gate_up", "down")
        }

    def _steps(self, cut, sums: bool) -> tuple[Step, Step]:
        experts = self.experts()
        gate_up = [matrix for gate, up, _ in experts for matrix in (gate, up)]
        down = [down for _, _, down in experts]
        return self._step("gate_up", gate_up, cut, sums), self._step("down", down, cut, sums)

    def _step(self, name: str, matrices: list[Matrix], cut, sums: bool) -> Step:
        items = Items.joined([cut(matrix, name) for matrix in matrices])
        of_sums = sum(partition(matrix, self.pages, self.threads).parts * matrix.outputs * 4 for matrix in matrices) if sums else 0
        return Step(items.traffic(), items.balance(self.cores), of_sums)
