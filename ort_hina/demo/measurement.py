"""What a run of the demo is asked, and what it answers: plain data, which crosses to another process as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What to run: `kind` is ``pytorch`` (`model` is a folder) or ``onnx`` (`model` is a file)."""

    kind: str
    model: str
    prompt: list[int]
    new_tokens: int


@dataclass(frozen=True)
class Measurement:
    """What came out.

    Attributes:
        tokens: the generated ids, without the prompt.
        nodes: nodes of the graph; None for PyTorch.
        layer_nodes: those of them that belong to decoder layers, by their names; None for PyTorch.
        load_seconds: from the files to a model (for ONNX: a session) that can run.
        resident_before_bytes: resident memory of the process before loading: Python and its libraries.
        peak_bytes: most resident memory of the process, libraries included; None where unknown, as for all three.
        private_bytes: anonymous memory at the end less that before loading.
        prefill_tokens_per_second: prompt tokens over the time to the first new token.
        decode_tokens_per_second: new tokens after the first, over the time for them.
    """

    tokens: list[int]
    nodes: int | None
    layer_nodes: int | None
    load_seconds: float
    resident_before_bytes: int | None
    peak_bytes: int | None
    private_bytes: int | None
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
