"""The command ``ort-hina bench``: which measurement, where, and what becomes of its result."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import _native
from ..errors import OrtHinaError
from . import attention, cliff, odd_sizes, operators, overhead, router
from .arguments import complete
from .plot import plot


def run(options: argparse.Namespace, say: Callable[[str], None]) -> list[dict]:
    """Does what the options ask for (see `arguments`), says lines for people, and returns one object for each case.

    Raises:
        OrtHinaError: a level cannot run here, or there is nothing to plot.
    """
    if options.read is not None:
        results = _read(options.read)
    else:
        with _folder(options.directory) as directory:
            results = _measure(options, directory, say)
    if options.plot is not None:
        try:
            svg = plot(results)
        except ValueError as error:
            raise OrtHinaError(str(error)) from error
        options.plot.write_text(svg, encoding="utf-8")
        say(f"wrote {options.plot}")
    return results


def _measure(options: argparse.Namespace, directory: Path, say: Callable[[str], None]) -> list[dict]:
    complete(options)
    options.threads = options.threads or _native.usable_threads()
    isas = _isas(options.isa)
    if options.overhead:
        return [result for isa in isas for result in overhead.run(isa, directory, say)]
    if options.router:
        return [result for isa in isas for result in router.run(isa, options.threads, say)]
    if options.attention is not None:
        return attention.run(options, isas, directory, say)
    if options.cliff:
        return cliff.run(options, isas, directory, say)
    if options.odd:
        return odd_sizes.run(options, isas, directory, say)
    return [case.facts() for case in operators.run(options, isas, directory, say)]


def _isas(wanted: list[str]) -> list[str]:
    try:
        chosen = _native.chosen_isa()["name"]
    except ValueError as error:
        raise OrtHinaError(str(error)) from error
    levels = {level["name"]: level for level in _native.isa_levels()}
    for name in wanted:
        if name not in levels:
            raise OrtHinaError(f"--isa {name}: expected some of {', '.join(levels)}")
        if not levels[name]["available"]:
            raise OrtHinaError(f"--isa {name}: {levels[name]['reason']}")
    return wanted or [chosen]


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="ort-hina-bench-") as temporary:
        yield Path(temporary)


def _read(file: Path) -> list[dict]:
    try:
        cases = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OrtHinaError(f"{file}: expected the JSON of an earlier run ({error})") from error
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise OrtHinaError(f"{file}: expected the JSON of an earlier run, a list of cases")
    return cases
