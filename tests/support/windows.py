"""Windows under construction: flat byte ranges into which arrays are placed at odd offsets."""

from __future__ import annotations

import numpy as np

from .elements import decode, encode


class WindowWriter:
    """Bytes of one element type. Whatever lies between the arrays is 0xff: NaN in every type, so reading it shows."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        self.kind = kind
        self._rng = rng
        self._parts: list[np.ndarray] = []
        self._size = 0

    def place(self, values: np.ndarray) -> tuple[int, np.ndarray]:
        """Appends float32 `values`; returns their byte offset and, as float64, what is left of them in this type."""
        self._append(np.full(self._rng.integers(0, 8), 0xFF, np.uint8))
        offset = self._size
        data = encode(values, self.kind)
        self._append(data)
        return offset, decode(data, self.kind).reshape(values.shape)

    def bytes(self) -> np.ndarray:
        """All of it, uint8. It ends with the last array."""
        return np.concatenate([np.empty(0, np.uint8), *self._parts])

    def _append(self, data: np.ndarray) -> None:
        self._parts.append(data)
        self._size += data.size
