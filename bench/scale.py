"""Fusing a graph of 48 layers × 128 experts, and creating sessions from it.

Two models: tiny dimensions, exported for real with Optimum (a few minutes, once: keep it with --directory), and the same
graph with the dimensions of Qwen3-30B-A3B, whose data file of over 100 GB is sparse: it has a size and no content.

    python -m bench.scale --directory DIR [--unfused]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx

import ort_hina
from bench.session import measured_elsewhere, table
from ort_hina.demo import memory
from ort_hina.models.tiny import export_tiny

LAYERS, EXPERTS = 48, 128
TINY_HIDDEN, TINY_INTERMEDIATE = 64, 32
HIDDEN, INTERMEDIATE = 2048, 768


def tiny_export(directory: Path) -> Path:
    """The exported model in `directory`; one that is there is taken as it is."""
    model = directory / "model.onnx"
    if model.exists():
        return model
    directory.mkdir(parents=True, exist_ok=True)
    overrides = {
        "num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": 8,
        "hidden_size": TINY_HIDDEN, "moe_intermediate_size": TINY_INTERMEDIATE,
    }  # fmt: skip
    return export_tiny("qwen3_moe", directory, external=True, overrides=overrides)


def widen(dims: list[int]) -> list[int]:
    """The dimensions of a tensor of the tiny model in the large one: only hidden and intermediate sizes change."""
    wide = {TINY_HIDDEN: HIDDEN, TINY_INTERMEDIATE: INTERMEDIATE}
    if sorted(dims) == sorted(wide):  # an expert's matrix
        return [wide[d] for d in dims]
    return [HIDDEN if d == TINY_HIDDEN else d for d in dims]


def sparse_copy(source: Path, directory: Path) -> Path:
    """The graph of `source` with large tensors in a sparse file."""
    directory.mkdir(parents=True, exist_ok=True)
    model = onnx.load(source, load_external_data=False)
    offset = 0
    for tensor in model.graph.initializer:
        tensor.dims[:] = widen(list(tensor.dims))
        length = 4
        for d in tensor.dims:
            length *= d
        del tensor.external_data[:]
        for key, value in (("location", "sparse.bin"), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        offset += -(-length // 64) * 64
    del model.graph.value_info[:]
    with open(directory / "sparse.bin", "wb") as file:
        file.truncate(offset)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    return directory / "model.onnx"


def fuse_elsewhere(model: Path, verify: str) -> dict:
    """Fuses in a process of its own; seconds and peak bytes include starting Python and loading the libraries."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "bench.scale", "--fuse", str(model), verify]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return {**json.loads(result.stdout.splitlines()[-1]), "seconds": time.perf_counter() - start, "verify": verify}


def fuse_here(model: Path, verify: str) -> dict:
    report = ort_hina.fuse(model, verify=int(verify) if verify.isdecimal() else verify)
    return {
        "model": str(model), "data_bytes": sum(f.stat().st_size for f in model.parent.glob("*") if f.suffix != ".onnx"),
        "nodes_before": report.nodes_before, "nodes_after": report.nodes_after, "fused": report.fused,
        "layers": len(report.layers), "fuse_seconds": report.seconds, "peak_bytes": memory.resident_peak(),
        "verified": sum(layer.verification == "verified" for layer in report.layers),
    }  # fmt: skip


def run(directory: Path, unfused: bool) -> None:
    tiny = tiny_export(directory / "tiny")
    sparse = sparse_copy(tiny, directory / "sparse")
    for model, verify in ((tiny, "none"), (tiny, "all"), (sparse, "none")):
        r = fuse_elsewhere(model, verify)
        print(
            f"{'/'.join(model.parts[-2:])} ({r['data_bytes'] / 1e9:.1f} GB of data), verify={verify}: {r['fused']} of "
            f"{r['layers']} layers fused, {r['verified']} verified, {r['nodes_before']:,} -> {r['nodes_after']:,} nodes in "
            f"{r['seconds']:.1f} s, peak {r['peak_bytes'] / 1e9:.2f} GB",
            flush=True,
        )
    models = [tiny.with_name("model_hina.onnx"), sparse.with_name("model_hina.onnx")]
    print(table([measured_elsewhere(model) for model in models + ([tiny] if unfused else [])]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep the models here (default: a temporary folder)")
    parser.add_argument("--unfused", action="store_true", help="create the unfused session, too (minutes)")
    parser.add_argument("--fuse", nargs=2, metavar=("MODEL", "VERIFY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fuse:
        print(json.dumps(fuse_here(Path(arguments.fuse[0]), arguments.fuse[1])))
        return
    with tempfile.TemporaryDirectory(prefix="ort-hina-scale-") as temporary:
        run(arguments.directory or Path(temporary), arguments.unfused)


if __name__ == "__main__":
    main()
