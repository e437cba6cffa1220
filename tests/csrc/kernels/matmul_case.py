"""A random matmul for one row of the kernel table: its operands in memory, its float64 result and its error bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from support.bfloat16 import as_operand
from support.elements import decode, encode, size_of
from support.float32 import gamma, lost_below
from support.guard import guarded
from support.levels import LEVELS

from ort_hina import _native


@dataclass
class MatmulCase:
    """C = A · W: `a` float32 [m, k]; `w` bytes, the weights `offset` bytes into them, rows `ldw` elements apart.

    Attributes:
        products: the type of the kernel's products, "float" or "bfloat16": both factors are rounded to it.
        dense: W as float64 [k, n], before that rounding.
    """

    a: np.ndarray
    w: np.ndarray
    offset: int
    ldw: int
    n: int
    products: str
    dense: np.ndarray

    def run(self, kernel: str, a: np.ndarray | None = None) -> np.ndarray:
        """C, float32 [m, n]."""
        return _native.matmul(kernel, self.a if a is None else a, self.w, self.offset, self.ldw, self.n)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """A and W as they are multiplied, float64."""
        if self.products == "bfloat16":
            return as_operand(self.a), as_operand(self.dense)
        return self.a.astype(np.float64), self.dense

    def expected(self) -> np.ndarray:
        a, w = self.factors()
        return a @ w

    def bound(self) -> np.ndarray:
        """What C may differ from `expected`, for each output: gamma(k) of the sum of magnitudes, whatever the order of the
        sum, and what is lost because numbers are too small. The roundings of factors to bfloat16 are no part of it: they
        are known exactly."""
        a, w = self.factors()
        k = self.a.shape[1]
        return gamma(k) * (np.abs(a) @ np.abs(w)) + lost_below(k, self.products)

    def errors(self, kernel: str) -> np.ndarray:
        """Of each output, in bounds."""
        return np.abs(self.run(kernel) - self.expected()) / self.bound()


def matmul_case(row: dict, m: int, n: int, k: int, *, pad: int = 0, offset: int = 0, seed: int = 0) -> MatmulCase:
    """Operands of random magnitude. Every byte that is not a weight (before `offset`, and `pad` elements after each row
    but the last) is 0xff, which makes NaNs of all types; both operands end at a forbidden page."""
    rng = np.random.default_rng(seed)
    a = _wide_range(rng, (m, k))
    rows, columns = (n, k) if row["layout"] == "nk" else (k, n)
    return case_of(row, a, _wide_range(rng, (rows, columns)), pad=pad, offset=offset)


def case_of(row: dict, a: np.ndarray, stored: np.ndarray, *, pad: int = 0, offset: int = 0) -> MatmulCase:
    """A [m, k] and the weights as they are stored, [n, k] or [k, n]: float32."""
    rows, columns = stored.shape
    data = encode(stored, row["weights"])
    size = size_of(row["weights"])
    padded = np.full((rows, (columns + pad) * size), 0xFF, np.uint8)
    padded[:, : columns * size] = data.reshape(rows, -1)
    flat = padded.reshape(-1)[: padded.size - pad * size]
    dense = decode(data, row["weights"]).reshape(rows, columns)
    w = guarded(np.concatenate([np.full(offset, 0xFF, np.uint8), flat]))
    dense = dense.T if row["layout"] == "nk" else dense
    return MatmulCase(guarded(a), w, offset, columns + pad, dense.shape[1], row["activations"], dense)


def available_rows() -> list[dict]:
    """The rows of the kernel table whose level this machine can run, AMX in the emulator included."""
    return [row for row in _native.kernel_table() if row["isa"] in LEVELS]


def _wide_range(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal values, each row scaled by its own power of two between 2^-8 and 2^8."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, (shape[0], 1))).astype(np.float32)
