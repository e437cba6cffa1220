"""Runs jobs (`worker`) in a process of their own, with this Python or with the one that has transformers 5."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import worker

_VARIABLE = "ORT_HINA_EXPORTERS_PYTHON"
_DEFAULT = Path(__file__).resolve().parent.parent / "build" / "exporters" / "bin" / "python"


def exporters_python() -> Path | None:
    """The Python that has transformers 5 and the newer exporters; None where there is none.

    ``make exporters`` makes it in ``build/exporters``; the variable ORT_HINA_EXPORTERS_PYTHON names another.
    """
    python = Path(os.environ.get(_VARIABLE) or _DEFAULT)
    return python if python.exists() else None


def run_jobs(jobs: Sequence[dict[str, Any]], *, separate: bool) -> Iterator[dict[str, Any]]:
    """Does `jobs` one after the other in a new process, and yields the result of each.

    A process that ends early is no error of its own: the job it was at gets the end of what it printed as its error, and
    another process goes on with the next.

    Args:
        jobs: as `worker` describes them.
        separate: in the exporters' own environment.

    Raises:
        RuntimeError: `separate`, and there is no such environment.
    """
    python = exporters_python() if separate else Path(sys.executable)
    if python is None:
        raise RuntimeError("the exporters' own environment is not there; make it with: make exporters")
    left = list(jobs)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            results, printed = _run_process(python, left, Path(folder))
        if len(results) < len(left):
            results.append({"error": f"the process ended: {printed.strip().rsplit(chr(10), 1)[-1]}"})
        yield from results
        left = left[len(results) :]


def _run_process(python: Path, jobs: list[dict[str, Any]], folder: Path) -> tuple[list[dict[str, Any]], str]:
    todo, done = folder / "jobs.json", folder / "results.json"
    todo.write_text(json.dumps(jobs), encoding="utf-8")
    # -P: this folder must not come before the installed packages, whose names its files may have.
    command = [str(python), "-P", worker.__file__, str(todo), str(done)]
    process = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    lines = done.read_text(encoding="utf-8").splitlines() if done.exists() else []
    return [json.loads(line) for line in lines], process.stderr or f"exit status {process.returncode}"
