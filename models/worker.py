"""Exports and references in a process of their own: ``python -P worker.py JOBS RESULTS``.

JOBS is a JSON file: a list of objects, each with ``do`` (``export``, ``logits``, ``block_outputs`` or ``versions``) and the
arguments of it.
RESULTS gets one line of JSON for each job as it is done: ``{"path": ...}``, ``{"versions": ...}`` or ``{"error": ...}``.

The process has another version of transformers than ort_hina, which is not installed there: this file makes a package of
the folder that it lies in.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "ort_hina_models"
_LONGEST_ERROR = 400
_PACKAGES = ("torch", "transformers", "optimum-onnx", "onnx", "onnxscript", "onnxruntime-genai")


def main(jobs_file: str, results_file: str) -> None:
    # Models are made here, so nothing is to be looked up; huggingface_hub reads this when it is first imported.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    _make_package()
    _one_thread()
    with open(results_file, "w", encoding="utf-8") as results:
        for job in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
            print(json.dumps(_result(job)), file=results, flush=True)


def _cause(error: BaseException) -> str:
    """One line about the first cause of `error`: exporters wrap it in pages about themselves."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    short = text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}..."
    return f"{type(error).__name__}: {short}"


def _result(job: dict[str, Any]) -> dict[str, Any]:
    jobs = {"export": _export, "logits": _logits, "block_outputs": _block_outputs, "versions": _versions}
    arguments = dict(job)
    try:
        return jobs[arguments.pop("do")](**arguments)
    except Exception as error:  # exporters raise anything; what they raised is the result
        return {"error": _cause(error)}


def _export(exporter: str, family: str, directory: str, **options: Any) -> dict[str, Any]:
    table = _module("exporters.table")
    return {"path": str(table.EXPORTERS[exporter].export(family, Path(directory), **options))}


def _logits(family: str, file: str, dtype: str) -> dict[str, Any]:
    _module("reference").write_logits(family, Path(file), dtype=dtype)
    return {"path": file}


def _block_outputs(family: str, file: str, dtype: str) -> dict[str, Any]:
    _module("reference").write_block_outputs(family, Path(file), dtype=dtype)
    return {"path": file}


def _versions() -> dict[str, Any]:
    """Of the packages that are installed, without the local part that tells of a build."""
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    return {"versions": installed}


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _make_package() -> ModuleType:
    folder = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(_PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return package


def _one_thread() -> None:
    """Tiny models gain nothing from more, and the same sums in the same order give the same bits."""
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
