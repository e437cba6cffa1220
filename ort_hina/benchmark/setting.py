"""What stays the same from call to call."""

from __future__ import annotations

from dataclasses import dataclass

from .shapes import MoeShape


@dataclass(frozen=True)
class Setting:
    """`model` is the layer as published, `stored` the same with the experts that the weights file holds. `dtype` of the
    weights: float, float16 or bfloat16; `layout`: nk or kn; `isa`: an instruction level; `bf16_compute`: float and float16
    weights are multiplied as bfloat16 where the level can."""

    model: MoeShape
    stored: MoeShape
    dtype: str
    layout: str
    isa: str
    threads: int
    bf16_compute: bool = False
