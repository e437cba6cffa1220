"""A random matmul for one row of the kernel table: its operands in memory, its float64 result and its error bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from support.elements import decode, encode, size_of
from support.float32 import UNDERFLOW, gamma
from support.guard import guarded

from ort_hina import _native


@dataclass
class MatmulCase:
    """C = A · W: `a` float32 [m, k]; `w` bytes, the weights `offset` bytes into them, rows `ldw` elements apart."""

    a: np.ndarray
    w: np.ndarray
    offset: int
    ldw: int
    n: int
    dense: np.ndarray  # W as float64 [k, n]

    def run(self, kernel: str, a: np.ndarray | None = None) -> np.ndarray:
        """C, float32 [m, n]."""
        return _native.matmul(kernel, self.a if a is None else a, self.w, self.offset, self.ldw, self.n)

    def expected(self) -> np.ndarray:
        return self.a.astype(np.float64) @ self.dense

    def bound(self) -> np.ndarray:
        """What C may differ from `expected`, for each output.

        Products and sums are float32: gamma(k) of the sum of magnitudes, and what each product loses to underflow.
        """
        k = self.a.shape[1]
        return gamma(k) * (np.abs(self.a.astype(np.float64)) @ np.abs(self.dense)) + k * UNDERFLOW


def matmul_case(row: dict, m: int, n: int, k: int, *, pad: int = 0, offset: int = 0, seed: int = 0) -> MatmulCase:
    """Operands of random magnitude. Every byte that is not a weight (before `offset`, and `pad` elements after each row
    but the last) is 0xff, which makes NaNs of all types; both operands end at a forbidden page."""
    rng = np.random.default_rng(seed)
    a = _wide_range(rng, (m, k))
    rows, columns = (n, k) if row["layout"] == "nk" else (k, n)
    data = encode(_wide_range(rng, (rows, columns)), row["weights"])
    size = size_of(row["weights"])
    padded = np.full((rows, (columns + pad) * size), 0xFF, np.uint8)
    padded[:, : columns * size] = data.reshape(rows, -1)
    flat = padded.reshape(-1)[: padded.size - pad * size]
    dense = decode(data, row["weights"]).reshape(rows, columns)
    w = guarded(np.concatenate([np.full(offset, 0xFF, np.uint8), flat]))
    return MatmulCase(guarded(a), w, offset, columns + pad, n, dense.T if row["layout"] == "nk" else dense)


def available_rows() -> list[dict]:
    """The rows of the kernel table whose level this machine can run."""
    levels = {level["name"] for level in _native.isa_levels() if level["available"]}
    return [row for row in _native.kernel_table() if row["isa"] in levels]


def _wide_range(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal values, each row scaled by its own power of two between 2^-8 and 2^8."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, (shape[0], 1))).astype(np.float32)
