"""PyTorch's scaled_dot_product_attention as a peer, in a process of its own: its threads are not ONNX Runtime's.

The process (`python -m ort_hina.benchmark.attention_torch THREADS`) reads a request from each line of its standard input,
and writes a line with the answer, all of it JSON: ``{"do": METHOD, ...}`` names a method of `_Server` and its arguments.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .attention_caches import caches, new_tokens
from .attention_work import AttentionShape, AttentionWork


class TorchFailed(Exception):
    """The process ended. The message says how."""


class TorchProcess:
    """The peer's process, which has one work at a time."""

    def __init__(self, threads: int, directory: Path) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._file = directory / "torch-answer.npy"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def __enter__(self) -> TorchProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def prepare(self, work: AttentionWork, dtype: str, count: int) -> None:
        """Takes up `work`, with `count` caches."""
        self._ask(do="prepare", work=asdict(work), dtype=dtype, count=count)

    def seconds(self, step: int) -> float:
        return self._ask(do="run", step=step)

    def answer(self) -> np.ndarray:
        self._ask(do="answer", file=str(self._file))
        answer = np.load(self._file)
        self._file.unlink()
        return answer

    def _ask(self, **request: Any) -> Any:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise TorchFailed(f"its process ended with exit status {self._process.wait()}")
        return json.loads(line)


def installed() -> bool:
    return importlib.util.find_spec("torch") is not None


class _Server:
    """Does what is asked."""

    def __init__(self, threads: int) -> None:
        import torch

        self._torch = torch
        torch.set_num_threads(threads)

    def prepare(self, work: dict, dtype: str, count: int) -> None:
        self._caches = []  # of the work before: freed first
        shape = AttentionShape(**work.pop("shape"))
        self._work = AttentionWork(shape, **work)
        tokens = new_tokens(self._work, dtype)
        self._query = self._heads(tokens.query, shape.heads)
        for cache in caches(self._work, dtype, count):
            key, value = self._tensor(cache.key), self._tensor(cache.value)
            # Writing the new rows is part of an operator with a cache, but not of this function: it is not measured.
            key[:, :, -self._work.new_tokens :] = self._heads(tokens.key, shape.kv_heads)
            value[:, :, -self._work.new_tokens :] = self._heads(tokens.value, shape.kv_heads)
            self._caches.append((key, value))
        self._mask = self._window_mask() if shape.window is not None and self._work.phase == "prefill" else None

    def run(self, step: int) -> float:
        key, value = self._caches[step % len(self._caches)]
        start = time.perf_counter()
        with self._torch.no_grad():
            self._output = self._attend(key, value)
        return time.perf_counter() - start

    def answer(self, file: str) -> None:
        self.run(0)
        batch, tokens = self._work.batch, self._work.new_tokens
        np.save(file, self._output.transpose(1, 2).reshape(batch, tokens, -1).float().numpy())

    def _attend(self, key: Any, value: Any) -> Any:
        if self._work.phase == "decode" and self._work.shape.window is not None:
            key, value = (x[:, :, -self._work.shape.window :] for x in (key, value))
        causal = self._work.phase == "prefill" and self._mask is None
        return self._torch.nn.functional.scaled_dot_product_attention(
            self._query, key, value, attn_mask=self._mask, is_causal=causal, enable_gqa=True
        )

    def _window_mask(self) -> Any:
        positions = self._torch.arange(self._work.length)
        distance = positions[:, None] - positions[None, :]
        return (distance >= 0) & (distance < self._work.shape.window)

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype == np.uint16:
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def _heads(self, array: np.ndarray, heads: int) -> Any:
        """[B, S, heads · D] → [B, heads, S, D]."""
        return self._tensor(array).view(self._work.batch, self._work.new_tokens, heads, -1).transpose(1, 2)


def main() -> None:
    server = _Server(int(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(server, request.pop("do"))(**request)), flush=True)


if __name__ == "__main__":
    main()
