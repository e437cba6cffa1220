"""The command ``ort-hina``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .benchmark.arguments import add_arguments as add_bench_arguments
from .errors import OrtHinaError
from .matrix.arguments import add_arguments as add_matrix_arguments
from .version import __version__

if TYPE_CHECKING:
    from .report import FusionReport

# Exit statuses: 0 done; 1 it ran, and the answer is bad (nothing was fused, the demo's texts differ); 2 the user has to
# change something.
_OK, _BAD_ANSWER, _USER_ERROR = 0, 1, 2


class _Report(Protocol):
    def to_text(self) -> str: ...

    def to_json(self) -> str: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with `arguments` (default: those of the process) and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except BrokenPipeError:  # the reader of our output has seen enough, as in `ort-hina inspect model.onnx | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except (OrtHinaError, OSError) as error:
        print(f"ort-hina: error: {error}", file=sys.stderr)
        return _USER_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ort-hina", description="Mixture-of-Experts models on CPUs with ONNX Runtime")
    parser.add_argument("--version", action="version", version=f"ort-hina {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    fuse = commands.add_parser("fuse", help="replace each MoE block and each attention by one node; the weights stay")
    fuse.add_argument("model", type=Path, help="the ONNX file that an exporter wrote")
    fuse.add_argument("-o", "--output", type=Path, help="file to write, in the model's folder (default: *_hina.onnx)")
    fuse.add_argument(
        "--verify",
        type=_verify,
        default="all",
        metavar="all|none|N",
        help="run every MoE layer (or N of them) before and after, and compare (default: all)",
    )
    fuse.add_argument(
        "--allow-lost-experts",
        action="store_true",
        help="fuse layers of which the export dropped experts; the result is as wrong as the file",
    )
    fuse.add_argument("--no-attention", action="store_true", help="leave attention as it was exported")
    _add(fuse, _fuse)

    inspect = commands.add_parser("inspect", help="what a model holds, and what would be fused")
    inspect.add_argument("model", type=Path, help="an ONNX file")
    _add(inspect, _inspect)

    genai = commands.add_parser("genai", help="let a folder of onnxruntime-genai run the model that was fused in it")
    genai.add_argument("folder", type=Path, help="the folder that holds genai_config.json")
    genai.add_argument("--undo", action="store_true", help="let it run the original model again")
    _add(genai, _genai)

    _add(commands.add_parser("machine", help="the kernels, CPUs and memory nodes of this machine"), _machine)

    numa = commands.add_parser("numa", help="on which memory nodes a model's weights lie, and what to do about it")
    numa.add_argument("model", type=Path, help="an ONNX file, fused or not")
    numa.add_argument("--touch", action="store_true", help="read the weights that are not in the page cache, too")
    _add(numa, _numa)

    demo = commands.add_parser("demo", help="build, export, fuse and run a model; needs the optimum extra")
    demo.add_argument("--directory", type=Path, help="keep the model's files here (default: a temporary folder)")
    _add(demo, _demo)

    bench = commands.add_parser("bench", help="measure the operators on cold weights, beside what the machine can do")
    add_bench_arguments(bench)
    _add(bench, _bench)

    matrix = commands.add_parser("matrix", help="export every family with every exporter, fuse and compare; minutes")
    add_matrix_arguments(matrix)
    _add(matrix, _matrix)
    return parser


def _add(command: argparse.ArgumentParser, run: object) -> None:
    command.add_argument("--json", metavar="FILE", help="write the result as JSON, too (-: to standard output, alone)")
    command.set_defaults(run=run)


def _verify(text: str) -> str | int:
    if text in ("all", "none"):
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected all, none or a number of layers, got {text!r}")


def _fuse(options: argparse.Namespace) -> int:
    from .progress import Progress

    if sys.stderr.isatty():
        with Progress("Reading the graph and fusing its layers") as progress:
            report = _fused(options, progress.show)
    else:
        report = _fused(options, None)
    _show(report, options.json)
    if report.output is not None and options.json != "-":
        _show_next_step(report.output)
    return _OK if report.fused else _BAD_ANSWER


def _show_next_step(fused: str) -> None:
    from .genai import next_step

    if command := next_step(fused):
        print(f"  for onnxruntime-genai, next: {command}", flush=True)


def _fused(options: argparse.Namespace, progress: Callable[[int, int], None] | None) -> FusionReport:
    from .fusion import fuse

    return fuse(
        options.model,
        options.output,
        verify=options.verify,
        allow_lost_experts=options.allow_lost_experts,
        attention=not options.no_attention,
        progress=progress,
    )


def _inspect(options: argparse.Namespace) -> int:
    from .inspection import inspect

    _show(inspect(options.model), options.json)
    return _OK


def _genai(options: argparse.Namespace) -> int:
    from .genai import use_fused

    _show(use_fused(options.folder, undo=options.undo), options.json)
    return _OK


def _machine(options: argparse.Namespace) -> int:
    from .machine import machine

    _show(machine(), options.json)
    return _OK


def _numa(options: argparse.Namespace) -> int:
    from .numa_report import numa_report

    _show(numa_report(options.model, touch=options.touch), options.json)
    return _OK


def _demo(options: argparse.Namespace) -> int:
    # Read when huggingface_hub is first imported: the demo's model is made here, nothing is to be looked up.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from .demo.run import run

    if options.directory is not None:
        report = run(options.directory)
    else:
        with tempfile.TemporaryDirectory(prefix="ort-hina-demo-") as directory:
            report = run(Path(directory))
    _show(report, options.json)
    return _OK if report.tokens_identical else _BAD_ANSWER


def _bench(options: argparse.Namespace) -> int:
    from .benchmark.command import run

    # The table grows as it is measured; where JSON has standard output to itself, it goes to standard error.
    lines = sys.stderr if options.json == "-" else sys.stdout
    text = json.dumps(run(options, lambda line: print(line, file=lines, flush=True)), indent=1)
    if options.json == "-":
        print(text, flush=True)
    elif options.json is not None:
        _write(Path(options.json), text + "\n")
    return _OK


def _matrix(options: argparse.Namespace) -> int:
    from .matrix.command import run

    # The lines come as the cells are computed, as those of the benchmark do.
    lines = sys.stderr if options.json == "-" else sys.stdout
    matrix = run(options, lambda line: print(line, file=lines, flush=True))
    _show(matrix, options.json)
    return _BAD_ANSWER if matrix.wrong else _OK


def _show(report: _Report, json_file: str | None) -> None:
    if json_file == "-":
        print(report.to_json(), flush=True)
        return
    print(report.to_text(), flush=True)
    if json_file is not None:
        _write(Path(json_file), report.to_json() + "\n")


def _write(file: Path, text: str) -> None:
    """All of the text or nothing: under another name first."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
