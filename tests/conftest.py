"""Fixtures of the whole suite: tiny models exported once per run, and fresh copies to fuse."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# huggingface_hub reads it when it is first imported: no test may reach for the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"


@pytest.fixture(scope="session")
def tiny_export(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_export(variant, opset=None, dtype="fp32", external=True)`` → path of ``model.onnx``.

    One export per combination and run. The folder is shared: read it, never write to it (see `tiny_copy`).
    """
    from ort_hina.models.tiny import export_tiny

    done: dict[tuple, Path] = {}

    def export(
        variant: str = "qwen3_moe", opset: int | None = None, dtype: str = "fp32", external: bool = True
    ) -> Path:
        key = (variant, opset, dtype, external)
        if key not in done:
            directory = tmp_path_factory.mktemp(f"{variant}-{dtype}-opset{opset or 'default'}")
            done[key] = export_tiny(variant, directory, opset=opset, dtype=dtype, external=external)
        return done[key]

    return export


@pytest.fixture
def tiny_copy(tiny_export: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """As `tiny_export`, in a folder that belongs to the test: it may be written to. The PyTorch model is not copied."""

    def copy(variant: str = "qwen3_moe", **arguments) -> Path:
        source = tiny_export(variant, **arguments).parent
        target = tmp_path / source.name
        if not target.exists():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("pytorch"))
        return target / "model.onnx"

    return copy


@pytest.fixture(scope="session")
def tiny_pytorch(tiny_export: Callable[..., Path]) -> Callable[..., object]:
    """``tiny_pytorch(variant)`` → the transformers model (float32, evaluation mode) behind `tiny_export`'s file."""
    done: dict[str, object] = {}

    def load(variant: str = "qwen3_moe"):
        from transformers import AutoModelForCausalLM

        if variant not in done:
            folder = tiny_export(variant).parent / "pytorch"
            done[variant] = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        return done[variant]

    return load
