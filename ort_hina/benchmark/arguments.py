"""The options of ``ort-hina bench``. Imports nothing that is slow to import: every command's parser is built at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from .attention_work import ATTENTION_SHAPES, DEFAULT_SHAPES
from .shapes import ELEMENT_BYTES, SHAPES

LAYOUTS = ("nk", "kn")
ENGINE_NAMES = ("ort", "native")
PEER_NAMES = ("ort", "torch")
# What `complete` puts where nothing was said.
_OF_LAYERS = {"dtype": ["float", "bfloat16"], "prefill": [512, 2048]}
_OF_ATTENTION = {
    "dtype": list(ELEMENT_BYTES), "prefill": [512, 1024, 2048, 4096, 8192], "lengths": [1024, 8192, 32768, 131072],
    "batch": [1, 4], "rotation_bytes": None,
}  # fmt: skip
_QUICK = {"prefill": [64], "lengths": [256], "batch": [1], "rotation_bytes": 16 << 20}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all but ``--json``. Lists are separated by commas."""
    parser.add_argument(
        "--shape", type=_names(SHAPES), default="qwen3-30b-a3b", metavar="NAME,...",
        help=f"layers: all, or of {', '.join(SHAPES)} (default: qwen3-30b-a3b)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", type=_names(ELEMENT_BYTES), metavar="TYPE,...",
        help=f"element types of weights or caches: all, or of {', '.join(ELEMENT_BYTES)} (default: float,bfloat16; "
        "attention: all)",
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
        "--prefill", type=_counts, metavar="T,...",
        help="tokens that choose among all experts at random, or of a prompt; or none (default: 512,2048; attention also "
        "1024,4096,8192)",
    )  # fmt: skip
    parser.add_argument("--threads", type=_count, metavar="N", help="default: the CPUs that this process may use")
    parser.add_argument(
        "--engine", type=_names(ENGINE_NAMES), default="all", metavar="ort|native",
        help="through ONNX Runtime, or without it (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", nargs="?", type=_names(PEER_NAMES), const=list(PEER_NAMES), default=[], metavar="ort,torch",
        help="others on the same work, too: ONNX Runtime's own operators (float; attention also float16) and, for "
        "attention, PyTorch's (default: none; without names both)",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="milliseconds over tokens for each expert, a panel a layer"
    )
    parser.add_argument("--read", type=Path, metavar="FILE.json", help="measure nothing: plot the cases that --json wrote")
    parser.add_argument("--directory", type=Path, help="where the weights are written (default: a temporary folder)")
    parser.add_argument(
        "--lengths", type=_counts, metavar="L,...",
        help="attention: keys that a new token sees; or none (default: 1024,8192,32768,131072)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_counts, metavar="B,...", help="attention: sequences at a time (default: 1,4)"
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="attention: small sizes, to see that it works")
    study = parser.add_mutually_exclusive_group()
    study.add_argument(
        "--overhead", action="store_true", help="what a call through ONNX Runtime costs more than one without it"
    )
    study.add_argument(
        "--router", action="store_true", help="the Router operator against the nodes that it stands for"
    )
    study.add_argument("--cliff", action="store_true", help="1 to 64 tokens for each expert, each against one token less")
    study.add_argument(
        "--attention", nargs="?", type=_names(ATTENTION_SHAPES), const=list(DEFAULT_SHAPES), metavar="NAME,...",
        help="GroupQueryAttention through ONNX Runtime, over a cache that is written in place: all, or of "
        f"{', '.join(ATTENTION_SHAPES)} (without names: {','.join(DEFAULT_SHAPES)})",
    )  # fmt: skip
    study.add_argument("--odd", action="store_true", help="odd sizes against the round ones beside them")


def complete(options: argparse.Namespace) -> None:
    """Puts in what was not said and depends on the study. `rotation_bytes` is what calls of attention read before they come
    back to the first cache (None: as much as makes them all cold)."""
    defaults = _OF_LAYERS if options.attention is None else _OF_ATTENTION
    if options.quick:
        defaults = defaults | _QUICK
    vars(options).update({name: value for name, value in defaults.items() if vars(options).get(name) is None})


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
