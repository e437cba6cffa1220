"""The arguments of ``ort-hina matrix``, apart: the command line is read before anything large is imported."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--families", type=_names, metavar="A,B", help="only these (default: all)")
    parser.add_argument("--exporters", type=_names, metavar="A,B", help="only these (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few cells of each kind, in less than a minute")
    parser.add_argument(
        "--exports", type=Path, metavar="DIR", help="keep the exports here, and take those that are there already"
    )


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
