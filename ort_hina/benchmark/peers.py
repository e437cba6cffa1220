"""ONNX Runtime's own operators on the same work, f32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from . import models
from .layers import session, timed
from .setting import Setting
from .shapes import MoeShape
from .workload import Workload, exact


class ContribLayer:
    """com.microsoft MoE, whose own router gets logits that leave it no choice."""

    operator = "ORT MoE"
    layout = "nk"

    def __init__(self, directory: Path, setting: Setting) -> None:
        self.session = session(models.contrib_model(directory, setting.stored), setting.threads)

    def seconds(self, workload: Workload, step: int) -> float:
        return timed(self.session, {"x": workload.x, "router_logits": router_logits(workload, step)})


class MatmulLayer:
    """MatMuls over every stored expert with equally many rows each, prepacked as ONNX Runtime does by default."""

    operator = "ORT MatMuls"
    layout = "kn"

    def __init__(self, directory: Path, setting: Setting) -> None:
        self.session = session(models.matmul_model(directory, setting.stored), setting.threads)

    def seconds(self, workload: Workload, step: int) -> float:
        hidden = np.zeros((workload.tokens, workload.shape.intermediate), np.float32)
        return timed(self.session, {"x": workload.x, "hidden": hidden})


def router_logits(workload: Workload, step: int) -> np.ndarray:
    """f32 [T, E] by which top-k chooses the experts of this call."""
    logits = np.full((workload.tokens, workload.shape.experts), -10, np.float32)
    np.put_along_axis(logits, workload.ids[step % len(workload.ids)], 10, axis=1)
    return logits


def over_all_experts(shape: MoeShape, tokens_per_expert: int) -> Workload:
    """The work of `MatmulLayer`."""
    return exact(replace(shape, k=shape.experts), tokens_per_expert)
