"""The attention of real models (config.json of each), and what a call of it has to compute and to read."""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import ELEMENT_BYTES


@dataclass(frozen=True)
class AttentionShape:
    """One layer: heads of the query, heads of keys and values, their size, and how many keys a query sees (None: all)."""

    name: str
    heads: int
    kv_heads: int
    head_size: int
    window: int | None = None


ATTENTION_SHAPES = {
    shape.name: shape
    for shape in (
        AttentionShape("qwen3-30b-a3b", 32, 4, 128),
        AttentionShape("mixtral-8x7b", 32, 8, 128),
        AttentionShape("gpt-oss-120b", 64, 8, 64),
        AttentionShape("gpt-oss-120b-window", 64, 8, 64, window=128),
    )
}
# Every second layer of gpt-oss has a window, and costs next to nothing: on request only.
DEFAULT_SHAPES = ("qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b")


@dataclass(frozen=True)
class AttentionWork:
    """One size of call: `batch` sequences with `length` keys each, the last `new_tokens` of which come with the call."""

    shape: AttentionShape
    batch: int
    new_tokens: int
    length: int

    @property
    def phase(self) -> str:
        """``prefill`` (no past) or ``decode``."""
        return "prefill" if self.new_tokens == self.length else "decode"

    @property
    def flops(self) -> int:
        """Operations of the two matrix products over the keys that each query sees; a multiply-add is two."""
        pairs = self._pairs_up_to(self.length) - self._pairs_up_to(self.length - self.new_tokens)
        return 4 * self.batch * self.shape.heads * self.shape.head_size * pairs

    def cache_bytes(self, dtype: str) -> int:
        """Bytes of the keys and values that some query sees: what has to be read once."""
        window = self.shape.window
        return self._bytes(dtype, self.length if window is None else min(self.length, window + self.new_tokens - 1))

    def stored_bytes(self, dtype: str) -> int:
        """Bytes of a whole cache."""
        return self._bytes(dtype, self.length)

    def _pairs_up_to(self, tokens: int) -> int:
        """Keys that the first `tokens` of a sequence see, together: 1 + 2 + …, but none more than the window."""
        growing = min(tokens, self.shape.window or tokens)
        return growing * (growing + 1) // 2 + (tokens - growing) * growing

    def _bytes(self, dtype: str, rows: int) -> int:
        return 2 * self.batch * self.shape.kv_heads * rows * self.shape.head_size * ELEMENT_BYTES[dtype]
