"""A folder of exports, one folder each: what is there already is not exported again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .environment import exporters_python, run_jobs
from .exporters.table import EXPORTERS, Exporter

_FILE = "model.onnx"
NO_ENVIRONMENT = "the exporters' own environment is not there; make it with: make exporters"


@dataclass(frozen=True)
class Export:
    """What to export: a variant, an exporter's name, an opset (None: the exporter's default) and an element type."""

    family: str
    exporter: str
    opset: int | None = None
    dtype: str = "fp32"

    @property
    def name(self) -> str:
        """The name of its folder: what is not the default is in it."""
        opset = "" if self.opset is None else f"-op{self.opset}"
        dtype = "" if self.dtype == "fp32" else f"-{self.dtype}"
        return f"{self.family}-{self.exporter}{opset}{dtype}"

    @property
    def by(self) -> Exporter:
        return EXPORTERS[self.exporter]


@dataclass(frozen=True)
class Exported:
    """The outcome: the file, or why there is none."""

    export: Export
    path: Path | None
    error: str | None = None


def export_all(exports: Sequence[Export], directory: Path) -> Iterator[Exported]:
    """Exports into folders of `directory`, or finds what is there, in the order of `exports`.

    One process serves all exports in a row that need the same environment: order them by exporter.
    """
    left = list(exports)
    while left:
        export = left[0]
        if (directory / export.name / _FILE).exists():
            yield Exported(left.pop(0), directory / export.name / _FILE)
        elif export.by.separate and exporters_python() is None:
            yield Exported(left.pop(0), None, NO_ENVIRONMENT)
        else:
            together = _alike(left, directory)
            left = left[len(together) :]
            yield from _export(together, directory)


def _alike(exports: list[Export], directory: Path) -> list[Export]:
    """The exports at the head of the list that are to be made in one environment."""
    count = 0
    for export in exports:
        if export.by.separate != exports[0].by.separate or (directory / export.name / _FILE).exists():
            break
        count += 1
    return exports[:count]


def _export(exports: list[Export], directory: Path) -> Iterator[Exported]:
    jobs = [
        {
            "do": "export",
            "exporter": export.exporter,
            "family": export.family,
            "directory": str(directory / export.name),
            "opset": export.opset,
            "dtype": export.dtype,
        }
        for export in exports
    ]
    for export, result in zip(exports, run_jobs(jobs, separate=exports[0].by.separate), strict=True):
        if "path" in result:
            yield Exported(export, Path(result["path"]))
        else:  # half an export must not be taken for one
            shutil.rmtree(directory / export.name, ignore_errors=True)
            yield Exported(export, None, result["error"])
