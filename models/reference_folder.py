"""A folder of PyTorch's answers: what is there already is not computed again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .environment import exporters_python, run_jobs
from .export_folder import NO_ENVIRONMENT, Export

# The builder quantises; the model that it started from is the reference.
_REFERENCE_DTYPES = {"int4": "fp32"}


@dataclass(frozen=True)
class Reference:
    """The answers of one model in one version of transformers."""

    family: str
    dtype: str
    whole_model: bool
    separate: bool

    @classmethod
    def of(cls, export: Export) -> Reference:
        """The reference that `export` is to equal: from the version of transformers that exported it."""
        dtype = _REFERENCE_DTYPES.get(export.dtype, export.dtype)
        return cls(export.family, dtype, export.by.whole_model, export.by.separate)

    @property
    def name(self) -> str:
        """The name of its file."""
        part = "model" if self.whole_model else "block"
        return f"{self.family}-{self.dtype}-{part}-{'separate' if self.separate else 'here'}.npz"


def compute_references(references: Iterable[Reference], directory: Path) -> dict[Reference, Path | str]:
    """The file of each reference in `directory`, or why there is none."""
    directory.mkdir(parents=True, exist_ok=True)
    answers: dict[Reference, Path | str] = {}
    wanted = list(dict.fromkeys(references))
    for separate in (False, True):
        missing = []
        for reference in wanted:
            if reference.separate == separate:
                answers[reference] = directory / reference.name
                if not answers[reference].exists():
                    missing.append(reference)
        if separate and exporters_python() is None:
            answers |= dict.fromkeys(missing, NO_ENVIRONMENT)
            continue
        jobs = [_job(reference, directory / reference.name) for reference in missing]
        for reference, result in zip(missing, run_jobs(jobs, separate=separate), strict=True):
            if "error" in result:
                answers[reference] = result["error"]
    return answers


def read_reference(file: Path) -> dict[str, np.ndarray]:
    """The answers in `file`, by `reference.key`."""
    with np.load(file) as archive:
        return dict(archive)


def _job(reference: Reference, file: Path) -> dict[str, str]:
    do = "logits" if reference.whole_model else "block_outputs"
    return {"do": do, "family": reference.family, "file": str(file), "dtype": reference.dtype}
