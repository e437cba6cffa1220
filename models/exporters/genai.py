"""The model builder of onnxruntime-genai: operators of the domain com.microsoft, and few families."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ..random_model import random_model
from ..tokenizer import save_tokenizer


class BuilderError(Exception):
    """The builder ended with an error; the text is the end of what it printed."""


def export(name: str, directory: Path, *, opset: int | None = None, dtype: str = "fp32") -> Path:
    """Builds the random model `name` into ``directory/model.onnx``, for the CPU.

    Args:
        name: a variant.
        directory: must exist.
        opset: must be None, the builder decides.
        dtype: what the builder calls precision: ``fp32``, ``fp16``, ``bf16`` or ``int4``.

    Raises:
        BuilderError: the builder does not know the family, or failed.
        ValueError: an opset was asked for.
    """
    if opset is not None:
        raise ValueError(f"onnxruntime-genai's builder chooses the opset itself, {opset} was asked for")
    with tempfile.TemporaryDirectory() as folder:
        source, cache = Path(folder, "source"), Path(folder, "cache")
        random_model(name).save_pretrained(source)
        save_tokenizer(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", directory]
        options = ["-p", dtype, "-e", "cpu", "-c", cache]
        done = subprocess.run([*command, *options], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuilderError(done.stderr.strip().rsplit("\n", 1)[-1])
    return directory / "model.onnx"
