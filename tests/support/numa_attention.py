"""A model for the NUMA lab of one attention node whose caches are large enough to lie on several nodes."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .attention_native import assert_inside
from .attention_reference import AttentionCase, attend, make_case, present_caches
from .attention_session import attention_model, feeds_of
from .levels import product_type
from .numa_models import GUEST_LEVEL


@dataclass(frozen=True)
class NumaAttention:
    """A model in a folder: ``model.onnx`` and ``feeds.npz``."""

    folder: Path
    case: AttentionCase

    def assert_right(self, y: str) -> None:
        """An output as the guest reports it lies within its bound, however its keys were cut."""
        found = np.frombuffer(base64.b64decode(y), np.float32).reshape(self.case.query.shape).astype(np.float64)
        keys, values = present_caches(self.case)
        expected = attend(self.case, keys.values, values, product_type(GUEST_LEVEL, "float"), self.case.total // 8)
        assert_inside(found, expected.values, expected.errors, "output")

    def cache_bytes(self) -> int:
        """Of the keys and values that a run reads."""
        return 2 * self.case.kv_heads * (self.case.total - 1) * self.case.query.shape[3] * 4


def write_attention(folder: Path) -> NumaAttention:
    """8000 keys of 64 floats, of 4 heads: 2 MB of a head's keys, and as much of its values."""
    folder.mkdir(parents=True)
    case = make_case(np.random.default_rng(0), kv_heads=4, group=2, size=64, past=8000, capacity=8192)
    feeds = feeds_of(case)
    onnx.save(attention_model(case.attributes(), feeds, case.kind), folder / "model.onnx")
    np.savez(folder / "feeds.npz", **feeds)
    return NumaAttention(folder, case)
