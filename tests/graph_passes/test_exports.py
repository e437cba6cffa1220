"""Real exports (``tests/fixtures``): what is found in each, and that the fused file answers what the unfused one answers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support import fixtures

import ort_hina
from ort_hina.models.onnx_cases import open_session, run_block, run_model

# Differences of the answers, relative to the largest of them. float: sums of the same products in another order, through
# two layers. float16: the unfused file rounds after every operator.
TOLERANCE = {"fp32": 5e-6, "fp16": 5e-3}

HIT = "the loop over the experts was exported for those that the example input hit"
FIXED = "how many tokens each expert gets was fixed when the file was exported"
LOST = "missing {} (the export dropped experts that its example input did not reach"
IDENTITY = "routing weights multiply the tokens themselves"
ATTENTION = "a reshape joins or splits axes"  # JetMoE's attention has experts that are single matrices
# By fixture: layers refused, and why. All others are fused whole.
REFUSED = {
    "deepseek_v3_32-optimum": (1, LOST.format("3, 4, 6, 9, 10, 13, 16, 19, 21, 22, 23, 28")),
    "ernie4_5_moe-optimum_custom": (1, HIT),
    "glm4_moe-block_torchscript": (1, LOST.format("7")),
    "glm4_moe-optimum_custom": (1, LOST.format("7")),
    "granitemoe-block_torchscript": (1, FIXED),
    "granitemoe-optimum_custom": (2, FIXED),
    "granitemoeshared-optimum_custom": (2, FIXED),
    "hunyuan_v1_moe-optimum_custom": (2, HIT),
    "jetmoe-optimum_custom": (4, FIXED),
    "jetmoe-torch_dynamo": (2, ATTENTION),
    "jetmoe-transformers_onnx": (2, ATTENTION),
    "lfm2_moe-genai-int4": (1, "quantised weights (int4, block 32): recognised, not run yet"),
    "longcat_flash-block_torchscript": (1, IDENTITY),
    "longcat_flash-optimum_custom": (1, IDENTITY),
    "minimax-block_torchscript": (1, HIT),
    "mixtral-optimum_custom": (2, HIT),
    "qwen2_moe-optimum_custom": (2, HIT),
    "qwen2_moe_32-optimum_custom": (2, HIT),
    "qwen3_next-block_torchscript": (1, HIT),
}
# No layer at all: product keys choose single vectors in doge; the builder leaves the experts of granitemoehybrid out.
NOT_FOUND = ("doge-torch_dynamo", "granitemoehybrid-genai")
# (routed layers, routers, networks of every token) that are fused.
FUSED = {
    (2, 2, 2): (
        "granitemoeshared-torch_dynamo",
        "hunyuan_v1_moe-torch_dynamo",
        "qwen2_moe-torch_dynamo",
        "qwen2_moe-transformers_onnx",
    ),
    (2, 2, 0): (
        "dbrx-optimum_custom",
        "flex_olmo-optimum_custom",
        "flex_olmo-torch_dynamo",
        "gpt_oss-genai",
        "gpt_oss-optimum",
        "gpt_oss-torch_dynamo",
        "gpt_oss-transformers_onnx",
        "gpt_oss-transformers_onnx_cpu",
        "granitemoe-torch_dynamo",
        "granitemoe-transformers_onnx",
        "jetmoe-torch_dynamo",
        "jetmoe-transformers_onnx",
        "minimax_m2-torch_dynamo",
        "mixtral-torch_dynamo",
        "mixtral-transformers_onnx",
        "olmoe-optimum_custom",
        "olmoe-torch_dynamo",
        "phimoe-optimum_custom",
        "phimoe-torch_dynamo",
        "phimoe-transformers_onnx",
        "qwen3_moe-optimum",
        "qwen3_moe-optimum-fp16",
        "qwen3_moe-torch_dynamo-fp16",
        "qwen3_moe-transformers_onnx-fp16",
        "qwen3_moe-optimum-op14",
        "qwen3_moe-optimum-op23",
        "qwen3_moe-torch_dynamo",
        "qwen3_moe-torch_dynamo-op23",
        "qwen3_moe-transformers_onnx",
        "qwen3_moe-transformers_onnx_cpu",
    ),
    (2, 0, 0): (
        "gpt_oss-optimum-fp16",
        "gpt_oss-torch_dynamo-fp16",
    ),
    (1, 1, 2): (
        "deepseek_v2_groups-transformers_onnx",
        "deepseek_v3-optimum",
        "deepseek_v3-optimum-fp16",
        "deepseek_v3-optimum-op14",
        "deepseek_v3-torch_dynamo",
        "deepseek_v3-torch_dynamo-fp16",
        "deepseek_v3-transformers_onnx",
        "deepseek_v3_one_group-optimum",
        "deepseek_v3_one_group-torch_dynamo",
        "dots1-optimum_custom",
        "ernie4_5_moe-torch_dynamo",
        "ernie4_5_moe-transformers_onnx",
        "glm4_moe-torch_dynamo",
    ),
    (1, 1, 1): (
        "deepseek_v2-block_dynamo",
        "deepseek_v2-block_torchscript",
        "deepseek_v2_groups-block_dynamo",
        "deepseek_v2_groups-block_torchscript",
        "lfm2_moe-genai",
        "lfm2_moe-transformers_onnx",
        "llama4_text-block_dynamo",
        "llama4_text-block_torchscript",
        "qwen3_moe_nonorm_dense-optimum",
        "qwen3_moe_nonorm_dense-torch_dynamo",
        "qwen3_next-block_dynamo",
    ),
    (1, 1, 0): (
        "jamba-block_dynamo",
        "jamba-block_torchscript",
        "lfm2_moe-block_dynamo",
    ),
}
COUNTS = {name: counts for counts, names in FUSED.items() for name in names}


def test_the_table_is_complete():
    assert set(COUNTS) | set(REFUSED) | set(NOT_FOUND) == set(fixtures.index())


@pytest.mark.parametrize("name", sorted(fixtures.index()))
def test_export(name, tmp_path):
    entry = fixtures.index()[name]
    model = fixtures.write(name, tmp_path)

    report = ort_hina.fuse(model)

    refused = [layer.reason for layer in report.layers if not layer.fused]
    count, reason = REFUSED.get(name, (0, ""))
    assert len(refused) == count and all(reason in text for text in refused), report.to_text()
    assert (report.fused, report.routers_fused, report.shared_fused) == COUNTS.get(name, (0, 0, 0)), report.to_text()
    done = [layer for layer in (*report.layers, *report.shared) if layer.fused]
    assert {layer.verification for layer in done} <= {"verified"}, report.to_text()
    if report.output is None:
        assert len(report.layers) == count
        return
    assert {(layer.num_experts, layer.k) for layer in report.layers} == {(entry["experts"], entry["k"])}
    _compare(entry, model, report.output)


def _compare(entry, model, fused):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    sessions = open_session(model), open_session(fused, options)
    if entry["whole_model"]:
        (expected, failed), (found, errors) = (run_model(session, entry["state_sizes"]) for session in sessions)
    else:
        (expected, failed), (found, errors) = (run_block(session) for session in sessions)
    # The builder's graphs do not take left padding, fused or not.
    assert set(errors) == set(failed) and set(found) == set(expected) and found
    for key, answer in expected.items():
        rows = np.abs(found[key] - answer).max(axis=-1) / np.abs(answer).max()
        # In half precision a near tie may send a token to another expert, in either file.
        ties = 0 if entry["dtype"] == "fp32" else max(1, rows.size // 20)
        assert (rows > TOLERANCE[entry["dtype"]]).sum() <= ties, (key, np.sort(rows.ravel())[-3:])
