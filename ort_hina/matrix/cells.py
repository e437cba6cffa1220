"""Which cells the matrix has: family × exporter × opset × element type."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import OrtHinaError
from ..models.export_folder import Export
from ..models.exporters.table import EXPORTERS
from ..models.families import VARIANTS

# One of each kind that needs no environment of its own: a loop over experts, experts that are lost, stacked experts with
# biases, a configuration of the user's own, an export that is wrong itself, and a block alone.
QUICK = (
    Export("qwen3_moe", "optimum"),
    Export("deepseek_v3_32", "optimum"),
    Export("gpt_oss", "optimum"),
    Export("olmoe", "optimum_custom"),
    Export("mixtral", "optimum_custom"),
    Export("deepseek_v2", "block_torchscript"),
)


def cells(
    families: Sequence[str] | None = None, exporters: Sequence[str] | None = None, *, quick: bool = False
) -> list[Export]:
    """The cells of these families and exporters (None: all), ordered by exporter.

    Raises:
        OrtHinaError: there is no such family or exporter, or none of the cells asked for exists.
    """
    _check(families, VARIANTS, "family")
    _check(exporters, EXPORTERS, "exporter")
    every = QUICK if quick else _all()
    chosen = [
        export
        for export in every
        if (families is None or export.family in families) and (exporters is None or export.exporter in exporters)
    ]
    if not chosen:
        raise OrtHinaError("no cell of the matrix has these families and exporters together")
    return chosen


def _all() -> list[Export]:
    return [
        Export(family, exporter.name, opset, dtype)
        for exporter in EXPORTERS.values()
        for family in exporter.families
        for opset, dtype in exporter.combinations(family)
    ]


def _check(names: Sequence[str] | None, known: Sequence[str], what: str) -> None:
    for name in names or ():
        if name not in known:
            raise OrtHinaError(f"unknown {what} {name!r}; known: {', '.join(known)}")
