"""What creating a session costs: seconds, private memory, memory mappings. Each model in a process of its own.

    python -m bench.session model.onnx model_hina.onnx
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ort_hina.demo import memory


@dataclass(frozen=True)
class SessionCost:
    """Of one session: bytes are those that its creation added to the process; mappings count those of data files."""

    model: str
    nodes: int
    seconds: float
    private_bytes: int
    resident_bytes: int
    peak_bytes: int
    data_mappings: int


def measure(model: Path) -> SessionCost:
    """Creates a session in this process, which should hold nothing else."""
    import onnx
    import onnxruntime

    import ort_hina

    graph = onnx.load(model, load_external_data=False).graph
    nodes = len(graph.node)
    # Experts share one data file with the other weights.
    files = {entry.value for t in graph.initializer for entry in t.external_data if entry.key == "location"}
    del graph
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    private, resident = memory.private_now(), memory.resident_now()
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start
    cost = SessionCost(
        str(model), nodes, seconds, memory.private_now() - private, memory.resident_now() - resident,
        memory.resident_peak(), _mappings({(model.parent / file).resolve() for file in files}),
    )  # fmt: skip
    del session
    return cost


def _mappings(files: set[Path]) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(any(line.endswith(f" {file}") for file in files) for line in lines)


def measured_elsewhere(model: Path) -> SessionCost:
    """As `measure`, in a process of its own."""
    command = [sys.executable, "-m", "bench.session", "--one", str(model)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return SessionCost(**json.loads(result.stdout.splitlines()[-1]))


def table(costs: list[SessionCost]) -> str:
    rows = [f"{'model':<44}{'nodes':>9}{'s':>8}{'private MB':>12}{'resident MB':>13}{'peak MB':>9}{'mappings':>10}"]
    for c in costs:
        rows.append(
            f"{'/'.join(Path(c.model).parts[-2:]):<44}{c.nodes:>9,}{c.seconds:>8.2f}{c.private_bytes / 1e6:>12.1f}"
            f"{c.resident_bytes / 1e6:>13.1f}{c.peak_bytes / 1e6:>9.0f}{c.data_mappings:>10}"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.session", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(asdict(measure(arguments.models[0]))))
    else:
        print(table([measured_elsewhere(model) for model in arguments.models]))


if __name__ == "__main__":
    main()
