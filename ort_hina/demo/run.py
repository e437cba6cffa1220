"""The demo from start to end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from ..errors import OrtHinaError
from ..machine import machine
from ..progress import Progress
from .build import build
from .measurement import Measurement, Task
from .report import DemoReport

_FIRST_WORD = 3  # ids below are the special ones


def run(
    directory: Path, *, variant: str = "qwen3_moe_demo", prompt_tokens: int = 128, new_tokens: int = 64
) -> DemoReport:
    """Builds, exports and fuses the model `variant` in `directory`, runs it three ways, and compares.

    Each of the three runs in its own process, so that the memory of one is not counted for another.

    Raises:
        OrtHinaError: a step failed; the message says which and why.
    """
    here = machine()
    files = build(variant, directory)
    config = json.loads((files.pytorch / "config.json").read_text())
    words = random.Random(0)
    prompt = [words.randrange(_FIRST_WORD, config["vocab_size"]) for _ in range(prompt_tokens)]
    return DemoReport(
        model=(
            f"{config['architectures'][0]}: {config['num_hidden_layers']} layers of {config['num_experts']} experts, "
            f"{config['num_experts_per_tok']} chosen"
        ),
        layers=config["num_hidden_layers"],
        weights_bytes=sum(file.stat().st_size for file in files.pytorch.glob("*.safetensors")),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        kernels=here.isa,
        threads=here.threads,
        fusion=files.fusion.to_text(),
        pytorch=_measure("PyTorch", Task("pytorch", str(files.pytorch), prompt, new_tokens)),
        unfused=_measure("unfused ONNX", Task("onnx", str(files.unfused), prompt, new_tokens)),
        fused=_measure("fused ONNX", Task("onnx", str(files.fused), prompt, new_tokens)),
    )


def _measure(name: str, task: Task) -> Measurement:
    command = [sys.executable, "-P", "-m", "ort_hina.demo.worker", json.dumps(asdict(task))]
    with Progress(f"Generating {task.new_tokens} tokens: {name}"):
        result = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    if result.returncode != 0:
        raise OrtHinaError(f"the run of {name} failed (exit status {result.returncode}):\n{result.stderr[-2000:]}")
    return Measurement(**json.loads(result.stdout.splitlines()[-1]))


def _environment() -> dict[str, str]:
    """The child imports from where this process does (not from the current folder, which ``-P`` keeps out), and
    stays off the network."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
