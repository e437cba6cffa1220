"""The true sizes of MoE layers (config.json of each model)."""

from __future__ import annotations

from dataclasses import dataclass, replace

ELEMENT_BYTES = {"float": 4, "float16": 2, "bfloat16": 2}
# A weights file of this size is a hundred times the largest L3, and leaves room in memory for a peer's prepacked copy.
FILE_BYTES = 3_000_000_000


@dataclass(frozen=True)
class MoeShape:
    """One layer: hidden and intermediate sizes, experts, and experts for each token."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    k: int

    def matrix_elements(self) -> int:
        """Elements of one of an expert's three matrices."""
        return self.hidden * self.intermediate

    def expert_bytes(self, dtype: str) -> int:
        """Bytes of an expert's three matrices."""
        return 3 * self.matrix_elements() * ELEMENT_BYTES[dtype]

    def stored(self, dtype: str, file_bytes: int = FILE_BYTES) -> MoeShape:
        """The same layer with as many experts as a file of `file_bytes` holds, but at least four, and at least two calls'
        worth: a call must not ask for the experts of the call before it."""
        fitting = file_bytes // self.expert_bytes(dtype)
        return replace(self, experts=min(self.experts, max(4, 2 * self.k, fitting)))


SHAPES = {
    shape.name: shape
    for shape in (
        MoeShape("mixtral-8x7b", 4096, 14336, 8, 2),
        MoeShape("mixtral-8x22b", 6144, 16384, 8, 2),
        MoeShape("deepseek-v3", 7168, 2048, 256, 8),
        MoeShape("qwen3-235b", 4096, 1536, 128, 8),
        MoeShape("qwen3-30b-a3b", 2048, 768, 128, 8),
        MoeShape("olmoe-1b-7b", 2048, 1024, 64, 8),
    )
}
# Table 3 of the HiNa-MoE paper.
PAPER_SHAPES = ("mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "qwen3-235b")
