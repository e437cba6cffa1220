"""The options of ``ort-hina bench``. Imports nothing that is slow to import: every command's parser is built at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from .shapes import ELEMENT_BYTES, SHAPES

LAYOUTS = ("nk", "kn")
ENGINE_NAMES = ("ort", "native")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all but ``--json``. Lists are separated by commas."""
    parser.add_argument(
        "--shape", type=_names(SHAPES), default="qwen3-30b-a3b", metavar="NAME,...",
        help=f"layers: all, or of {', '.join(SHAPES)} (default: qwen3-30b-a3b)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", type=_names(ELEMENT_BYTES), default="float,bfloat16", metavar="TYPE,...",
        help=f"element types of the weights: all, or of {', '.join(ELEMENT_BYTES)} (default: float,bfloat16)",
    )  # fmt: skip
    parser.add_argument("--layout", type=_names(LAYOUTS), default="all", metavar="nk|kn", help="default: both")
    parser.add_argument(
        "--isa", type=_list, default=[], metavar="LEVEL,...", help="instruction levels (default: the chosen one)"
    )
    parser.add_argument(
        "--compute", choices=("default", "bfloat16"), default="default",
        help="bfloat16: float and float16 weights are multiplied as bfloat16 where the level can",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", type=_counts, default="1,4,16,128", metavar="M,...",
        help="tokens for each active expert, exactly; or none (default: 1,4,16,128)",
    )  # fmt: skip
    parser.add_argument(
        "--prefill", type=_counts, default="512,2048", metavar="T,...",
        help="tokens that choose among all experts at random; or none (default: 512,2048)",
    )  # fmt: skip
    parser.add_argument("--threads", type=_count, metavar="N", help="default: the CPUs that this process may use")
    parser.add_argument(
        "--engine", type=_names(ENGINE_NAMES), default="all", metavar="ort|native",
        help="through ONNX Runtime, or without it (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", action="store_true", help="ONNX Runtime's own operators on the same work, too (float only)"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="milliseconds over tokens for each expert, a panel a layer"
    )
    parser.add_argument("--read", type=Path, metavar="FILE.json", help="measure nothing: plot the cases that --json wrote")
    parser.add_argument("--directory", type=Path, help="where the weights are written (default: a temporary folder)")
    study = parser.add_mutually_exclusive_group()
    study.add_argument(
        "--overhead", action="store_true", help="what a call through ONNX Runtime costs more than one without it"
    )
    study.add_argument(
        "--router", action="store_true", help="the Router operator against the nodes that it stands for"
    )
    study.add_argument("--cliff", action="store_true", help="1 to 64 tokens for each expert, each against one token less")
    study.add_argument("--odd", action="store_true", help="odd sizes against the round ones beside them")


def _list(text: str) -> list[str]:
    return text.split(",")


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if text == "all":
            return list(known)
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"expected all or some of {', '.join(known)}; got {name!r}")
        return text.split(",")

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [] if text == "none" else [_count(part) for part in text.split(",")]
