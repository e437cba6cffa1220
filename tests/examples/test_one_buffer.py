"""One buffer for past and present: the same logits as with growing caches, and memory that does not grow."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from one_buffer import OneBufferDecoder, greedy, main

import ort_hina
from ort_hina.demo import memory
from support.small_decoder import VOCABULARY, decoder_session, write_decoder

KINDS = ("float", "float16", "bfloat16")


def _ids(batch: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, count))


def _growing(session: onnxruntime.InferenceSession, pieces: list[np.ndarray]) -> list[np.ndarray]:
    """Logits of one piece after the other, with the caches that each run hands out as the past of the next."""
    binding, logits, length = session.io_binding(), [], 0
    empty = OneBufferDecoder(session, len(pieces[0]), 0).caches
    for piece in pieces:
        length += piece.shape[1]
        feeds = {
            "input_ids": piece,
            "attention_mask": np.ones((len(piece), length), np.int64),
            "position_ids": np.tile(np.arange(length)[-piece.shape[1] :], (len(piece), 1)),
        }
        caches = empty if not logits else dict(zip(empty, binding.get_outputs()[1:], strict=True))
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for name, cache in caches.items():
            binding.bind_ortvalue_input(name, cache)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        logits.append(binding.get_outputs()[0].numpy())
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_steps_are_those_of_growing_caches(kind):
    session = decoder_session(kind)
    pieces = [_ids(2, 9), *(_ids(2, 1, step) for step in range(200))]
    decoder = OneBufferDecoder(session, 2, 256)
    for expected, piece in zip(_growing(session, pieces), pieces, strict=True):
        np.testing.assert_array_equal(decoder.step(piece), expected)


def test_present_is_the_buffer_of_the_past():
    decoder = OneBufferDecoder(decoder_session(), 1, 32)
    places = [cache.data_ptr() for cache in decoder.caches.values()]
    assert len(set(places)) == 4
    for step in range(3):
        decoder.step(_ids(1, 5, step))
        outputs = decoder._binding.get_outputs()
        assert [output.data_ptr() for output in outputs[:-1]] == places
        assert [output.shape()[2] for output in outputs[:-1]] == [32] * 4


def test_rows_beyond_the_text_are_neither_read_nor_written():
    decoder, clean = (OneBufferDecoder(decoder_session(), 1, 64) for _ in range(2))
    for cache in decoder.caches.values():
        cache.numpy()[:] = np.nan
    for step in range(3):
        np.testing.assert_array_equal(decoder.step(_ids(1, 7, step)), clean.step(_ids(1, 7, step)))
    assert all(np.isnan(cache.numpy()[:, :, 21:]).all() for cache in decoder.caches.values())


def test_a_text_is_taken_up_again_from_an_earlier_token():
    decoder, fresh = (OneBufferDecoder(decoder_session(), 1, 160) for _ in range(2))
    text, other = _ids(1, 117), _ids(1, 40, 1)
    decoder.step(text[:, :100])
    decoder.step(text[:, 100:])
    decoder.rewind(60)
    fresh.step(text[:, :60])
    np.testing.assert_array_equal(decoder.step(other), fresh.step(other))


def test_a_shorter_prompt_in_a_batch_answers_as_alone():
    session, lengths = decoder_session(), (3, 9, 16)
    together = OneBufferDecoder(session, len(lengths), 64)
    prompts, mask = _ids(3, 16), np.zeros((3, 16), np.int64)
    for row, length in enumerate(lengths):
        mask[row, 16 - length :] = 1
    single = [OneBufferDecoder(session, 1, 64) for _ in lengths]
    found = together.step(prompts, mask)
    alone = [decoder.step(row[mask_row == 1][None]) for decoder, row, mask_row in zip(single, prompts, mask, strict=True)]
    for step in range(20):
        np.testing.assert_allclose(found[:, -1], [logits[0, -1] for logits in alone], atol=1e-4)
        ids = _ids(3, 1, step)
        found = together.step(ids)
        alone = [decoder.step(row[None]) for decoder, row in zip(single, ids, strict=True)]


def test_where_there_is_no_room_nothing_is_done():
    decoder = OneBufferDecoder(decoder_session(), 1, 8)
    decoder.step(_ids(1, 6))
    with pytest.raises(ValueError, match="there is room for 8 tokens, and 9 are needed"):
        decoder.step(_ids(1, 3))
    assert decoder.step(_ids(1, 2)).shape == (1, 2, VOCABULARY)


def _growth(steps: int) -> int:
    """Bytes of private memory that a second text of so many tokens adds after a first one."""
    decoder = OneBufferDecoder(decoder_session(positions=steps), 1, steps)
    for text in range(2):
        if text == 1:
            decoder.rewind(0)
            before = memory.private_now()
        for step in range(steps):
            decoder.step(_ids(1, 1, step))
    return memory.private_now() - before


@pytest.mark.skipif(memory.private_now() is None, reason="the system does not say how much memory is private")
@pytest.mark.parametrize("steps", [200, pytest.param(4000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_steps(steps):
    assert _growth(steps) <= 1 << 20


def test_a_fused_export_writes_what_it_writes_with_growing_caches(tiny_copy):
    """A prompt and a shorter one, padded at its left; tokens of Optimum's `generate`."""
    pytest.importorskip("optimum.onnxruntime")
    import torch

    file = tiny_copy("qwen3_moe")
    report = ort_hina.fuse(file)
    assert report.attention_fused and report.one_buffer is None
    prompt, mask = _ids(2, 9) + 3, np.ones((2, 9), np.int64)
    mask[1, :4] = 0
    model = ort_hina.ORTModelForCausalLM.from_pretrained(file.parent)
    inputs = {"input_ids": torch.tensor(prompt), "attention_mask": torch.tensor(mask)}
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=40, min_new_tokens=40)[:, 9:]
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    session = onnxruntime.InferenceSession(report.output, options)
    steps = greedy(OneBufferDecoder(session, 2, 64), prompt, mask)
    np.testing.assert_array_equal(np.concatenate([next(steps) for _ in range(40)], axis=1), expected.numpy())


def test_the_command_writes_the_likeliest_tokens(tmp_path, monkeypatch, capsys):
    prompt = _ids(1, 5)
    steps = greedy(OneBufferDecoder(decoder_session(), 1, 64), prompt)
    expected = [int(next(steps)[0, 0]) for _ in range(12)]
    file = write_decoder(tmp_path / "decoder.onnx")
    monkeypatch.setattr("sys.argv", ["one_buffer.py", str(file), "12", *map(str, prompt[0])])
    main()
    assert capsys.readouterr().out.split() == [str(token) for token in expected]
