"""The true sizes of MoE layers (config.json of each model)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoeShape:
    """One layer: hidden and intermediate sizes, experts, and experts for each token."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    k: int

    def matrix_elements(self) -> int:
        return self.hidden * self.intermediate

    def expert_bytes(self, element_bytes: int) -> int:
        return 3 * self.matrix_elements() * element_bytes


SHAPES = {
    shape.name: shape
    for shape in (
        MoeShape("qwen3-30b-a3b", 2048, 768, 128, 8),
        # One layer of Mixtral is 5.6 GB in f32: all 8 experts, as in the model.
        MoeShape("mixtral-8x7b", 4096, 14336, 8, 2),
        MoeShape("olmoe-1b-7b", 2048, 1024, 64, 8),
    )
}
