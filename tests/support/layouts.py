"""How matrices lie in memory: every row of the strides table of docs/operators.md.

A matrix here is float32 [k, n], from k inputs to n outputs. Storing gives the elements as they lie, and for each matrix
its strides (k, n) and its offset, in elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SINGLE = ("nk", "kn")
PAIRED = ("nk_concatenated", "nk_interleaved", "kn_concatenated", "kn_interleaved")
GATE_UP = (*SINGLE, *PAIRED)


@dataclass(frozen=True)
class Stored:
    """`array` as it lies, flat; for each matrix in it: its strides along inputs and outputs, and where it starts."""

    array: np.ndarray
    strides: tuple[int, int]
    starts: tuple[int, ...]


def store(matrices: list[np.ndarray], layout: str, padding: int = 0) -> Stored:
    """Lays one matrix (layout ``nk`` or ``kn``) or gate and up (one of `PAIRED`) out.

    Args:
        padding: elements after each row but the last: NaN, since nothing may read them.
    """
    base, _, pairing = layout.partition("_")
    k, n = matrices[0].shape
    rows = [matrix.T if base == "nk" else matrix for matrix in matrices]
    outputs = 0 if base == "nk" else 1
    if pairing == "interleaved":
        joined = np.stack(rows, axis=outputs + 1).reshape((2 * n, k) if base == "nk" else (k, 2 * n))
    else:
        joined = np.concatenate(rows, axis=outputs)
    row = joined.shape[1] + padding
    array = np.full((joined.shape[0], row), np.nan, np.float32)
    array[:, : joined.shape[1]] = joined
    flat = array.reshape(-1)[: array.size - padding]
    along_n = row if base == "nk" else 1
    if pairing == "interleaved":
        return Stored(flat, (1, 2 * along_n) if base == "nk" else (row, 2), (0, along_n))
    starts = tuple(i * n * along_n for i in range(len(matrices)))
    return Stored(flat, (1, along_n) if base == "nk" else (row, 1), starts)
