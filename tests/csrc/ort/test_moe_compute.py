"""Session config entry ``ort_hina.compute``: float weights may be multiplied as bfloat16."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from support.levels import EMULATED_AMX, ROUNDS_TO_BFLOAT16, every_level
from support.moe_native import assert_within, exact, expected
from support.moe_session import create_session, model_for, run_session
from support.moe_tokens import make_tokens, random_ids
from support.moe_weights import MoeSpec, make_weights

import ort_hina


@every_level
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
def test_rounds_factors_on_request(isa, layout, kind, monkeypatch):
    monkeypatch.setenv("ORT_HINA_ISA", isa)
    weights = make_weights(MoeSpec(4, 60, 50, layout, layout, windows=(kind,), bias=True))
    for count in (1, 50):
        inputs = make_tokens(random_ids(count, 2, 4), 60)
        model = model_for(weights, inputs)
        plain, default, requested = (
            run_session(create_session(model, threads=2, compute=compute), inputs)
            for compute in (None, "default", "bfloat16")
        )
        np.testing.assert_array_equal(plain, default)
        assert_within(plain, expected(weights, inputs, isa))
        assert_within(requested, expected(weights, inputs, isa, bf16_compute=True))
        assert_within(requested, exact(weights, inputs, isa, bf16_compute=True))
        changes = isa in ROUNDS_TO_BFLOAT16 and kind != "bfloat16"
        assert (np.abs(plain - requested).max() > 1e-4) == changes


def test_sessions_of_one_process_keep_their_own(monkeypatch):
    """Registered before or after another: each computes as its own options say."""
    weights = make_weights(MoeSpec(3, 40, 30))
    inputs = make_tokens(random_ids(9, 2, 3), 40)
    model = model_for(weights, inputs)
    sessions = [create_session(model, compute=compute) for compute in (None, "bfloat16", None)]
    for _ in range(2):
        first, rounded, second = (run_session(session, inputs) for session in sessions)
        np.testing.assert_array_equal(first, second)
        assert_within(first, expected(weights, inputs))
        assert_within(rounded, expected(weights, inputs, bf16_compute=True))


def test_by_ort_hina_register(monkeypatch):
    weights = make_weights(MoeSpec(3, 40, 30))
    inputs = make_tokens(random_ids(9, 2, 3), 40)
    options = onnxruntime.SessionOptions()
    ort_hina.register(options, compute="bfloat16")
    session = onnxruntime.InferenceSession(model_for(weights, inputs).SerializeToString(), options)
    assert_within(run_session(session, inputs), expected(weights, inputs, bf16_compute=True))


@pytest.mark.parametrize("compute", ["bf16", "float", "Bfloat16", "bfloat16 ", "1"])
def test_an_unknown_value_is_an_error(compute):
    weights = make_weights(MoeSpec(3, 40, 30))
    model = model_for(weights, make_tokens(random_ids(9, 2, 3), 40))
    with pytest.raises(InvalidArgument) as error:
        create_session(model, compute=compute)
    message = f"ort_hina: session config entry ort_hina.compute: expected default or bfloat16, got '{compute}'"
    assert message in str(error.value)


@pytest.mark.skipif(not EMULATED_AMX, reason="AMX is not emulated here")
def test_emulated_amx_is_never_chosen_by_itself(monkeypatch):
    """Tests allow it; a user's process that sets the variable by mistake must not get it."""
    monkeypatch.delenv("ORT_HINA_ISA", raising=False)
    assert ort_hina._native.chosen_isa()["name"] != "amx"
