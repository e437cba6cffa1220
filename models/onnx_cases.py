"""An exported file on the cases (`cases`), in ONNX Runtime: a prefill on an empty past and two steps of decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from .cases import CASES, Case, Step, steps
from .reference import block_inputs, key

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
# What exporters call the state: the first part of the name, of an input and of the output that is the next step's input.
_STATE_INPUTS, _STATE_OUTPUTS = ("past_key_values", "past", "cache"), ("present", "cache", "past_key_values")

Answers = dict[str, np.ndarray]
"""Logits (or outputs of a block) of every step, by `reference.key`."""


class CannotRun(Exception):
    """ONNX Runtime does not load the file, or the file has an input that is not known here."""


def open_session(path: Path, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    """A session with one thread on the CPU.

    Raises:
        CannotRun: with ONNX Runtime's own words.
    """
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no public class in common
        raise CannotRun(_one_line(error)) from None


def run_model(
    session: onnxruntime.InferenceSession, sizes: Mapping[str, int] | None = None
) -> tuple[Answers, dict[str, str]]:
    """Runs a whole model on every case.

    Args:
        session: of the file.
        sizes: values of symbolic sizes of the state, by name, as `state_sizes` finds them. Others are 0: no past.

    Returns:
        The logits, float32, and for each case that did not run to its end, by name, why.

    Raises:
        CannotRun: the file has an input that is not known here.
    """
    answers, errors = {}, {}
    for case in CASES:
        try:
            answers |= _run_case(session, case, sizes or {})
        except CannotRun:
            raise
        except Exception as error:
            errors[case.name] = _one_line(error)
    return answers, errors


def run_block(session: onnxruntime.InferenceSession) -> tuple[Answers, dict[str, str]]:
    """Runs one MoE block alone on `reference.block_inputs`. Returns what `run_model` returns."""
    (entry,) = session.get_inputs()
    answers, errors = {}, {}
    for name, hidden in block_inputs(entry.shape[-1]).items():
        try:
            (answer,) = session.run(None, {entry.name: hidden.astype(_TYPES[entry.type])})
            answers[key(name, 0)] = answer.astype(np.float32)
        except Exception as error:
            errors[name] = _one_line(error)
    return answers, errors


def state_sizes(folder: Path) -> dict[str, int]:
    """What symbolic sizes of the state stand for, by name, in the export in `folder`.

    Onnxruntime-genai wants a past of the size of the window from the start, and tells it beside the model.
    """
    file = folder / "genai_config.json"
    if not file.exists():
        return {}
    decoder = json.loads(file.read_text(encoding="utf-8"))["model"]["decoder"]
    window = decoder.get("sliding_window", {}).get("window_size", 0)
    return {"kv_cache_dim": decoder["head_size"], "past_sliding_length": window}


def real_tokens() -> dict[str, np.ndarray]:
    """By `reference.key`, which tokens of each step are no padding: the answers to the others mean nothing."""
    return {key(case.name, i): step.real for case in CASES for i, step in enumerate(steps(case))}


def _run_case(session: onnxruntime.InferenceSession, case: Case, sizes: Mapping[str, int]) -> Answers:
    answers, state = {}, None
    for i, step in enumerate(steps(case)):
        logits, state = run_step(session, step, state, sizes)
        answers[key(case.name, i)] = logits.astype(np.float32)
    return answers


def run_step(
    session: onnxruntime.InferenceSession, step: Step, state: Answers | None, sizes: Mapping[str, int]
) -> tuple[np.ndarray, Answers]:
    """One call on a whole model. Returns the logits, and the state for the next step (None: there is no past yet)."""
    names = [entry.name for entry in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, _feeds(session, step, state, sizes)), strict=True))
    logits = outputs.pop("logits")
    return logits, {_bare(name, _STATE_OUTPUTS): value for name, value in outputs.items()}


def _feeds(session: onnxruntime.InferenceSession, step: Step, state: Answers | None, sizes: Mapping[str, int]) -> Answers:
    given = {"input_ids": step.ids, "attention_mask": step.mask, "position_ids": step.positions}
    feeds = {}
    for entry in session.get_inputs():
        if entry.name in given:
            feeds[entry.name] = given[entry.name].astype(_TYPES[entry.type])
        elif state is not None:
            feeds[entry.name] = state[_bare(entry.name, _STATE_INPUTS)]
        else:
            feeds[entry.name] = _empty(entry, len(step.ids), sizes)
    return feeds


def _bare(name: str, prefixes: tuple[str, ...]) -> str:
    first, _, rest = name.partition(".")
    if first not in prefixes:
        raise CannotRun(f"{name!r} is none of the names that exporters give to keys, values and states")
    return rest


def _empty(entry: Any, batch: int, sizes: Mapping[str, int]) -> np.ndarray:
    """The state before the first token. Sizes that are no number are 0 (no past), but the first one, which is the batch."""
    _bare(entry.name, _STATE_INPUTS)
    rest = [int(size) if str(size).isdecimal() else sizes.get(size, 0) for size in entry.shape[1:]]
    return np.zeros([batch, *rest], _TYPES[entry.type])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
