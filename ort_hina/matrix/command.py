"""The run of ``ort-hina matrix``."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import OrtHinaError
from ..models.export_folder import Export, export_all
from ..models.reference_folder import Reference, compute_references, read_reference
from .cell import judge
from .cells import cells
from .report import Matrix, line

_PACKAGES = ("torch", "transformers", "optimum")


def run(options: argparse.Namespace, show: Callable[[str], None]) -> Matrix:
    """Computes the cells that `options` asks for. `show` gets a line for each as it is done.

    Raises:
        OrtHinaError: torch and transformers are not installed, or the options name what is not known.
    """
    _check_packages()
    wanted = cells(options.families, options.exporters, quick=options.quick)
    if options.exports is not None:
        return _compute(wanted, options.exports, show)
    with tempfile.TemporaryDirectory(prefix="ort-hina-matrix-") as directory:
        return _compute(wanted, Path(directory), show)


def _compute(wanted: list[Export], directory: Path, show: Callable[[str], None]) -> Matrix:
    references = compute_references(map(Reference.of, wanted), directory / "references")
    matrix = Matrix([])
    for exported in export_all(wanted, directory):
        file = references[Reference.of(exported.export)]
        matrix.cells.append(judge(exported, read_reference(file) if isinstance(file, Path) else None))
        show(line(matrix.cells[-1]))
    return matrix


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise OrtHinaError(
            f'the matrix exports models, and {", ".join(missing)} is not installed: pip install "ort-hina[optimum]"'
        )
