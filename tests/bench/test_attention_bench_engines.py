"""Else the comparison would mean nothing: ort_hina, ONNX Runtime and PyTorch compute the same, and that is attention."""

from __future__ import annotations

import numpy as np
import pytest

from ort_hina.benchmark import attention, attention_caches
from ort_hina.benchmark.attention_engines import OnnxRuntimeAttention
from ort_hina.benchmark.attention_torch import TorchFailed, TorchProcess
from ort_hina.benchmark.attention_work import AttentionShape, AttentionWork

TINY = AttentionShape("tiny", 6, 2, 32)
WINDOW = AttentionShape("tiny-window", 6, 2, 32, window=8)
WORKS = [AttentionWork(shape, *sizes) for shape in (TINY, WINDOW) for sizes in ((2, 1, 37), (1, 19, 19))]
TYPES = ("float", "float16", "bfloat16")
# Half a unit in the last place, relative.
ROUNDING = {"float": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def _exact(work: AttentionWork, dtype: str) -> tuple[np.ndarray, float]:
    """Attention in float64, and how far from it an answer may be.

    A score is a sum of D products, of a query that may be scaled and rounded first; a weight is its exponential, rounded
    once in the cache's type where that is what is multiplied; the output is a sum over the keys, rounded to the type. All of
    it is relative to the largest value, because the weights are at most 1 together.
    """
    shape, group = work.shape, work.shape.heads // work.shape.kv_heads
    tokens = attention_caches.new_tokens(work, dtype)
    (cache,) = attention_caches.caches(work, dtype, 1)
    query, key, value = (attention_caches.widened(x).astype(np.float64) for x in (tokens.query, tokens.key, tokens.value))
    keys, values = (attention_caches.widened(x).astype(np.float64) for x in (cache.key, cache.value))
    lead = (work.batch, work.new_tokens)
    keys[:, :, -work.new_tokens :] = key.reshape(*lead, shape.kv_heads, -1).swapaxes(1, 2)
    values[:, :, -work.new_tokens :] = value.reshape(*lead, shape.kv_heads, -1).swapaxes(1, 2)
    queries = query.reshape(*lead, shape.heads, -1).swapaxes(1, 2) / np.sqrt(shape.head_size)
    keys, values = (np.repeat(x, group, axis=1) for x in (keys, values))
    distance = np.arange(work.length - work.new_tokens, work.length)[:, None] - np.arange(work.length)[None, :]
    seen = (distance >= 0) & (distance < (shape.window or work.length))
    weights = np.where(seen, np.exp(queries @ keys.swapaxes(2, 3)), 0)
    output = weights / weights.sum(axis=-1, keepdims=True) @ values

    unit, rounding = ROUNDING["float"], ROUNDING[dtype]
    magnitude = (np.abs(queries) @ np.abs(keys).swapaxes(2, 3)).max()
    score = (shape.head_size * unit + 2 * rounding) * magnitude
    sums = 2 * work.length * unit
    bound = (2 * score + sums + 2 * rounding + 16 * unit) * np.abs(values).max()
    return output.swapaxes(1, 2).reshape(*lead, -1), bound


@pytest.fixture(scope="module")
def torch_process(tmp_path_factory):
    pytest.importorskip("torch")
    with TorchProcess(1, tmp_path_factory.mktemp("torch")) as process:
        yield process


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.shape.name}-{work.phase}")
@pytest.mark.parametrize("domain", ["ort_hina", "com.microsoft"])
def test_both_operators_answer_what_they_should(domain, work, dtype):
    if domain == "com.microsoft" and dtype not in attention.CONTRIB_TYPES:
        pytest.skip("ONNX Runtime has no such operator for CPUs")
    tokens, caches = attention_caches.new_tokens(work, dtype), attention_caches.caches(work, dtype, 1)
    answer = OnnxRuntimeAttention(domain, work, dtype, 1, tokens, caches).answer()
    expected, bound = _exact(work, dtype)
    assert np.abs(answer - expected).max() <= bound
    (untouched,) = attention_caches.caches(work, dtype, 1)
    old = work.length - work.new_tokens
    assert np.array_equal(caches[0].key[:, :, :old], untouched.key[:, :, :old])
    assert not np.array_equal(caches[0].key[:, :, old:], untouched.key[:, :, old:])  # the new rows were written in place


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: f"{work.shape.name}-{work.phase}")
def test_torch_answers_the_same(work, dtype, torch_process):
    torch_process.prepare(work, dtype, 2)
    assert torch_process.seconds(1) > 0
    expected, bound = _exact(work, dtype)
    answer = torch_process.answer()
    assert answer.shape == expected.shape and np.abs(answer - expected).max() <= bound


def test_each_step_has_a_cache_of_its_own():
    work = AttentionWork(TINY, 1, 1, 37)
    caches = attention_caches.caches(work, "float", 2)
    engine = OnnxRuntimeAttention("ort_hina", work, "float", 1, attention_caches.new_tokens(work, "float"), caches)
    first = engine.answer()
    engine.seconds(3)
    assert not np.array_equal(engine._output, first)
    engine.seconds(4)
    assert np.array_equal(engine._output, first)


def test_a_process_that_ended_says_how(tmp_path):
    pytest.importorskip("torch")
    with TorchProcess(1, tmp_path) as process, pytest.raises(TorchFailed, match="exit status 1"):
        process._ask(do="nonsense")
