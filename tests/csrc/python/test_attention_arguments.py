"""`_native.GroupQueryAttention` checks what it is given: it hands bare pointers to the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_native import sizes_of, tensors_of
from support.attention_reference import make_case

from ort_hina import _native

CASE = make_case(
    np.random.default_rng(0), batch=2, kv_heads=2, group=2, queries=3, past=5, rotary=8,
    bias=np.zeros((1, 1, 3, 8), np.float32), sink=np.zeros(4, np.float32), position_ids=np.zeros((2, 3), np.int64),
    mask=np.ones((2, 8), np.int32),
)  # fmt: skip
SIZES, TENSORS = sizes_of(CASE), tensors_of(CASE)


def run(**arguments):
    named = {"type": "float", "sizes": SIZES, "tensors": TENSORS} | arguments
    return _native.GroupQueryAttention(CASE.attributes()).run(**named)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_another_size(name):
    size = TENSORS[name].size
    with pytest.raises(ValueError, match=f"{name}: expected {size} bytes, got {size - 4}"):
        run(tensors=TENSORS | {name: TENSORS[name][:-4]})


@pytest.mark.parametrize("wrong", [lambda x: x.view(np.int8), lambda x: np.repeat(x, 2)[::2], lambda x: x.tolist()])
def test_a_tensor_that_would_have_to_be_converted(wrong):
    with pytest.raises(ValueError, match="query: expected a contiguous uint8 array"):
        run(tensors=TENSORS | {"query": wrong(TENSORS["query"])})


@pytest.mark.parametrize("name", ["query", "key", "value", "past_key", "past_value", "cos_cache", "sin_cache"])
def test_a_tensor_that_is_absent(name):
    with pytest.raises(ValueError, match=f"{name}: expected a tensor"):
        run(tensors={key: value for key, value in TENSORS.items() if key != name})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "double"}, "element type: expected float, float16 or bfloat16, got 'double'"),
        ({"threads": 0}, "threads: expected at least 1"),
        ({"sizes": SIZES | {"key_size": 0}}, "key_size, value_size: expected at least 1"),
        ({"sizes": SIZES | {"rotary_width": 17}}, "rotary_width: expected at most half of key_size"),
        ({"sizes": SIZES | {"bias_batch": 3}}, "bias_batch, bias_heads: expected 1, or those of the query"),
        ({"sizes": SIZES | {"rotary_batch": 2}}, "rotary_batch: expected 1 or batch, and as many rotary_positions as queries"),
        ({"sizes": SIZES | {"rotary_batch": 3, "rotary_positions": 3}}, "rotary_batch: expected 1 or batch"),
        ({"sizes": SIZES | {"mask_bytes": 2}}, "mask_bytes: expected 1, 4 or 8"),
        ({"types": {"cos_cache": "double"}}, "element type: expected float, float16 or bfloat16, got 'double'"),
        ({"in_place": True}, "in_place: expected a past of at least `total` rows"),
    ],
)
def test_other_arguments(arguments, message):
    tensors = dict(TENSORS)
    if arguments.get("sizes", {}).get("bias_batch") == 3:
        tensors["attention_bias"] = np.tile(TENSORS["attention_bias"], 3)
    with pytest.raises(ValueError, match=message):
        run(tensors=tensors, **arguments)


def test_a_cache_that_may_not_be_written():
    case = make_case(np.random.default_rng(0), past=5, capacity=6)
    tensors = tensors_of(case)
    tensors["past_key"].flags.writeable = False
    node = _native.GroupQueryAttention(case.attributes())
    with pytest.raises(ValueError, match="not writeable"):
        node.run("float", sizes_of(case), tensors, 1, True)


def test_unknown_level():
    with pytest.raises(ValueError, match="unknown level 'sse9'"):
        _native.GroupQueryAttention(CASE.attributes(), "sse9")
