"""Greedy generation with ONNX Runtime alone, and one buffer for each layer's keys and values.

    python examples/one_buffer.py my-export/model_hina.onnx 128 9707 11 1879

writes 128 tokens after the prompt (ids of the model's vocabulary). A decoder with the exporter's own attention hands out
new, longer caches at every step. One that `ort_hina.fuse` has fused takes caches of any length as its past, and writes the
new keys and values where they belong: each buffer is allocated once, for the longest text, and bound as past *and* as
present. Which of its rows hold keys, the attention mask says: it has as many columns as there are tokens so far.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto
from onnxruntime import InferenceSession, OrtValue

import ort_hina

# NumPy has no bfloat16: its elements are bound as their bits.
ELEMENTS = {
    "tensor(float)": (np.float32, TensorProto.FLOAT),
    "tensor(float16)": (np.float16, TensorProto.FLOAT16),
    "tensor(bfloat16)": (np.uint16, TensorProto.BFLOAT16),
}


class OneBufferDecoder:
    """A fused language model with inputs and outputs as Optimum names them, and room for `max_length` tokens a sequence.

    Args:
        session: of the fused model, for CPU.
        batch: sequences.
        max_length: of prompt and new tokens together.
    """

    def __init__(self, session: InferenceSession, batch: int, max_length: int) -> None:
        self._session, self._binding = session, session.io_binding()
        self._inputs = {value.name for value in session.get_inputs()}
        self._mask = np.zeros((batch, max_length), np.int64)
        self._length = 0
        self.caches: dict[str, OrtValue] = {}
        for value in session.get_inputs():
            if value.name.startswith("past_key_values."):
                numpy_type, onnx_type = ELEMENTS[value.type]
                _, heads, _, size = value.shape
                buffer = np.zeros((batch, heads, max_length, size), numpy_type)
                cache = OrtValue.ortvalue_from_numpy_with_onnx_type(buffer, onnx_type)
                self._binding.bind_ortvalue_input(value.name, cache)
                self._binding.bind_ortvalue_output(value.name.replace("past_key_values.", "present."), cache)
                self.caches[value.name] = cache

    def step(self, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Logits [batch, S, vocabulary] of the next tokens `ids` [batch, S].

        `mask` [batch, S]: 0 where a token is padding (left of a shorter prompt), which no token sees.

        Raises:
            ValueError: there is no room for these tokens.
        """
        start, end = self._length, self._length + ids.shape[1]
        if end > self._mask.shape[1]:
            raise ValueError(f"there is room for {self._mask.shape[1]} tokens, and {end} are needed")
        self._mask[:, start:end] = 1 if mask is None else mask
        self._length = end
        seen = self._mask[:, :end]
        feeds = {
            "input_ids": ids,
            "attention_mask": seen,
            "position_ids": np.maximum(seen.cumsum(axis=1) - 1, 0)[:, start:],
        }
        for name in feeds.keys() & self._inputs:
            value = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(feeds[name], np.int64))
            self._binding.bind_ortvalue_input(name, value)
        self._binding.bind_output("logits")  # anew: its shape follows that of the ids
        self._session.run_with_iobinding(self._binding)
        return self._binding.get_outputs()[-1].numpy()

    def rewind(self, length: int) -> None:
        """Forgets all but the first `length` tokens. Nothing is copied."""
        self._length = min(length, self._length)


def greedy(decoder: OneBufferDecoder, prompt: np.ndarray, mask: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """The likeliest next ids [batch, 1] after `prompt` [batch, S], one step after the other, without end."""
    logits = decoder.step(prompt, mask)
    while True:
        ids = logits[:, -1:].argmax(axis=-1)
        yield ids
        logits = decoder.step(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a fused model")
    parser.add_argument("tokens", type=int, help="how many to write")
    parser.add_argument("prompt", type=int, nargs="+", help="token ids")
    arguments = parser.parse_args()

    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    session = InferenceSession(arguments.model, options, providers=["CPUExecutionProvider"])
    decoder = OneBufferDecoder(session, 1, len(arguments.prompt) + arguments.tokens)
    steps = greedy(decoder, np.array([arguments.prompt]))
    print(*(int(next(steps)[0, 0]) for _ in range(arguments.tokens)))


if __name__ == "__main__":
    main()
