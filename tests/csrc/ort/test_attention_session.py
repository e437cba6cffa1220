"""GroupQueryAttention in ONNX Runtime: types, layouts, caches, and com.microsoft's operator of the same name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from support.attention_native import assert_answers
from support.attention_reference import AttentionCase, make_case, present_caches
from support.attention_session import attention_session, feeds_of, run_session
from support.elements import ELEMENTS

RNG = np.random.default_rng(0)


def answer(case: AttentionCase, *, shared: bool = False, threads: int = 1, packed: bool = False, **attributes):
    feeds = feeds_of(case, packed=packed)
    output, keys, values = run_session(attention_session(case, feeds, threads=threads, **attributes), feeds, shared=shared)
    return output.reshape(*case.query.shape[:3], case.value.shape[3]), keys, values


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("queries", "past"), [(1, 0), (9, 0), (1, 40), (5, 40), (1, 2000)])
def test_types(kind, threads, queries, past):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, size=64, queries=queries, past=past, rotary=16, kind=kind)
    assert_answers(case, answer(case, threads=threads))


@pytest.mark.parametrize("kind", ELEMENTS)
def test_everything_at_once(kind):
    case = make_case(RNG, batch=2, kv_heads=2, group=2, size=64, value_size=40, queries=6, past=30, rotary=16, kind=kind)
    bias = RNG.standard_normal((2, 4, 6, 36)).astype(np.float32)
    case = replace(
        case, bias=bias, sink=RNG.standard_normal(4).astype(np.float32), window=20, softcap=5.0, scale=0.3,
        interleaved=True, position_ids=RNG.integers(0, 36, (2, 6)), seqlens_k=np.array([35, 20], np.int32),
    )  # fmt: skip
    assert_answers(case, answer(case))


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize(("queries", "past"), [(1, 40), (5, 40), (5, 0)])
def test_one_buffer_as_past_and_present_is_written_in_place(kind, queries, past):
    case = make_case(RNG, batch=2, kv_heads=2, group=2, queries=queries, past=past, capacity=64, rotary=8, kind=kind)
    case.past_key[:, :, past:] = np.nan
    case.past_value[:, :, past:] = np.nan
    apart, shared = answer(case), answer(case, shared=True)
    assert_answers(case, apart)
    assert_answers(case, shared, in_place=True)
    np.testing.assert_array_equal(shared[0], apart[0])
    for own, other in zip(shared[1:], apart[1:], strict=True):
        assert np.isnan(own[:, :, past + queries :]).all() and (other[:, :, past + queries :] == 0).all()


@pytest.mark.parametrize("own", ["past_key", "past_value"])
def test_one_of_the_caches_may_be_written_in_place(own):
    case = make_case(RNG, batch=2, kv_heads=2, group=2, queries=3, past=40, capacity=64, rotary=8)
    expected = answer(case)
    feeds = feeds_of(case)
    output, keys, values = run_session(attention_session(case, feeds), feeds, shared=(own,))
    np.testing.assert_array_equal(output.reshape(expected[0].shape), expected[0])
    np.testing.assert_array_equal(keys[:, :, :43], expected[1][:, :, :43])
    np.testing.assert_array_equal(values[:, :, :43], expected[2][:, :, :43])
    for name, cache in (("past_key", keys), ("past_value", values)):
        assert (np.abs(cache[:, :, 43:]).max() == 0) == (name != own)


def test_a_buffer_that_is_kept_over_many_steps():
    """Prompt, then one token after the other, in one buffer of the longest length, as generation does it."""
    whole = make_case(RNG, kv_heads=2, group=2, queries=24, rotary=8)
    expected = answer(whole)[0]
    keys, values = (np.full((1, 2, 32, 32), np.nan, np.float32) for _ in range(2))
    buffers = [onnxruntime.OrtValue.ortvalue_from_numpy(x) for x in (keys, values)]
    for begin, end in [(0, 10), *((t, t + 1) for t in range(10, 24))]:
        step = replace(
            whole, query=whole.query[:, begin:end], key=whole.key[:, begin:end], value=whole.value[:, begin:end],
            total=end, seqlens_k=np.array([end - 1], np.int32), past_key=keys, past_value=values,
        )  # fmt: skip
        feeds = feeds_of(step)
        session = attention_session(step, feeds)
        binding = session.io_binding()
        for name, value in feeds.items():
            if not name.startswith("past"):
                binding.bind_cpu_input(name, value)
        for name, buffer in zip(("key", "value"), buffers, strict=True):
            binding.bind_ortvalue_input(f"past_{name}", buffer)
            binding.bind_ortvalue_output(f"present_{name}", buffer)
        binding.bind_output("output")
        session.run_with_iobinding(binding)
        output = binding.get_outputs()[-1].numpy().reshape(1, end - begin, 4, 32)
        np.testing.assert_allclose(output, expected[:, begin:end], rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", ELEMENTS)
def test_packed_rows(kind):
    case = make_case(RNG, batch=2, kv_heads=2, group=3, size=40, queries=5, past=11, rotary=8, kind=kind)
    for found, wanted in zip(answer(case, packed=True), answer(case), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_do(shape):
    case = make_case(RNG, batch=shape[0], kv_heads=2, group=2, queries=shape[1], past=4)
    output, keys, _ = answer(case)
    assert output.size == 0
    np.testing.assert_array_equal(keys, present_caches(case)[0].values)


def test_attributes_that_are_absent_have_the_default_of_the_description():
    case = make_case(RNG, kv_heads=2, group=2, queries=5, past=7)
    absent = dict.fromkeys(
        ("scale", "softcap", "local_window_size", "causal", "do_rotary", "rotary_interleaved", "smooth_softmax")
    )
    for found, wanted in zip(answer(case, **absent), answer(case), strict=True):
        np.testing.assert_array_equal(found, wanted)


def peer(case: AttentionCase) -> list[np.ndarray]:
    """What ONNX Runtime's own operator answers, told the same window: up to 1.23 the query's own key was not counted."""
    if case.window != -1 and onnxruntime.__version__.startswith("1.23."):
        case = replace(case, window=case.window - 1)
    feeds = feeds_of(case)
    if case.bias is None and case.past_key is None:
        # It wants a past, be it empty.
        for name in ("key", "value"):
            lead = case.query.shape[0], case.kv_heads, 0
            feeds[f"past_{name}"] = np.zeros((*lead, getattr(case, name).shape[3]), feeds["query"].dtype)
    attributes = {"smooth_softmax": int(case.smooth), "causal": None if case.causal else 0}
    session = attention_session(case, feeds, domain="com.microsoft", **attributes)
    output, keys, values = run_session(session, feeds)
    return [output.reshape(*case.query.shape[:3], -1), keys, values]


# What both have: name to changes of a case of 2 × 2 heads of 64.
SHARED = {
    "plain": {},
    "window": {"window": 4},
    "scale": {"scale": 0.5},
    "soft cap": {"softcap": 2.0},
    "smooth softmax": {"smooth": True},
    "sink": {"sink": np.array([0, 5, -3, 1], np.float32)},
    "rotary": {"rotary": 32},
    "partial rotary": {"rotary": 16},
    "interleaved": {"rotary": 32, "interleaved": True},
    "bias": {"bias": True},
    "bias and soft cap": {"bias": True, "softcap": 2.0},
    "bias and sink": {"bias": True, "sink": np.array([0, 5, -3, 1], np.float32)},
    "window and sink": {"window": 3, "sink": np.array([0, 5, -3, 1], np.float32)},
}


def shared_case(name: str, queries: int, past: int, batch: int, kind: str = "float") -> AttentionCase:
    changes = dict(SHARED[name])
    with_bias = changes.pop("bias", False)
    rotary = changes.pop("rotary", 0)
    case = make_case(
        np.random.default_rng(1), batch=batch, kv_heads=2, group=2, size=64, queries=queries, past=past, rotary=rotary,
        kind=kind, **changes,
    )  # fmt: skip
    if with_bias:
        bias = np.random.default_rng(2).standard_normal((batch, 4, queries, case.total))
        case = replace(case, bias=bias.astype(np.float32))
    return case


@pytest.mark.parametrize(("kind", "near"), [("float", 3e-6), ("float16", 6e-3)])
@pytest.mark.parametrize(("queries", "past", "batch"), [(12, 0, 2), (1, 11, 2), (3, 9, 1)])
@pytest.mark.parametrize("name", SHARED)
def test_the_same_as_onnxruntimes_own(name, queries, past, batch, kind, near):
    """X08, T01, T02, T06, T08: every attribute and input that both have, over three times the window."""
    case = shared_case(name, queries, past, batch, kind)
    for found, wanted in zip(answer(case), peer(case), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=near * max(1.0, np.abs(wanted).max()))


def test_each_of_these_changes_the_answer():
    """Otherwise the comparison would not see that an attribute is ignored."""
    plain = answer(shared_case("plain", 12, 0, 1))[0]
    for name in SHARED.keys() - {"plain"}:
        assert np.abs(answer(shared_case(name, 12, 0, 1))[0] - plain).max() > 1e-2, name


def test_a_batch_that_is_padded_at_its_end_is_onnxruntimes():
    case = replace(shared_case("rotary", 12, 0, 3), seqlens_k=np.array([11, 4, 8], np.int32))
    found, wanted = answer(case), peer(case)
    for b, rows in enumerate((12, 5, 9)):
        np.testing.assert_allclose(found[0][b, :rows], wanted[0][b, :rows], rtol=0, atol=3e-6)
        np.testing.assert_allclose(found[1][b, :, :rows], wanted[1][b, :, :rows], rtol=0, atol=3e-6)
    assert (found[0][1, 5:] == 0).all()


def test_calls_on_one_session_at_once():
    import concurrent.futures

    case = make_case(RNG, kv_heads=2, group=2, queries=1, past=3000)
    feeds = feeds_of(case)
    session = attention_session(case, feeds, threads=2)
    expected = run_session(session, feeds)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for answers in pool.map(lambda _: run_session(session, feeds), range(30)):
            for found, wanted in zip(answers, expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
