"""The demo's files: the PyTorch model, its export, and the fused export beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import OrtHinaError
from ..fusion import FusionReport, fuse
from ..progress import Progress

# Says that a folder is ours to write over: a user's own folder may hold a model.onnx, too.
_MARKER = "made-by-ort-hina-demo"


@dataclass(frozen=True)
class DemoFiles:
    """Folders and files of the demo, and what the fusion reported."""

    pytorch: Path
    unfused: Path
    fused: Path
    fusion: FusionReport


def build(variant: str, directory: Path) -> DemoFiles:
    """Builds, exports and fuses the random model `variant` in `directory`, which is created if missing.

    Raises:
        OrtHinaError: the folder holds files that the demo did not write, Optimum is not installed, or a layer
            was not fused.
    """
    _claim(directory)
    try:
        from ..models.export import export_directory
        from ..models.random_model import random_model

        with Progress("Building the PyTorch model (random weights)"):
            random_model(variant).save_pretrained(directory / "pytorch")
        with Progress("Exporting it with Optimum"):
            unfused = export_directory(directory / "pytorch", directory)
    except ImportError as error:
        raise OrtHinaError(f'the demo needs Optimum ({error}): pip install "ort-hina[optimum]"') from error
    fused = directory / "model_hina.onnx"
    with Progress("Fusing it, and verifying every layer") as progress:
        report = fuse(unfused, fused, progress=progress.show)
    found = [*report.layers, *report.attention]
    if not report.layers or not report.attention or not all(part.fused for part in found):
        raise OrtHinaError(f"not every layer was fused:\n{report.to_text()}")
    return DemoFiles(directory / "pytorch", unfused, fused, report)


def _claim(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise OrtHinaError(f"{directory} is not a folder")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise OrtHinaError(f"{directory} holds files that the demo did not write: name another folder, or empty it")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).touch()
