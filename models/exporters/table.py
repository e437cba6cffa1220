"""The exporters, one line each, and which families each is asked to export."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A softmax router with a loop over experts, one with stacked experts and biases, one with groups; and one for genai.
THOROUGH = ("qwen3_moe", "gpt_oss", "deepseek_v3", "lfm2_moe")


@dataclass(frozen=True)
class Exporter:
    """A way from a transformers model to an .onnx file."""

    name: str
    what: str
    module: str
    """Module of this package whose function ``export(name, directory, *, opset, dtype, **options)`` does it."""
    families: tuple[str, ...]
    """Variants worth asking for. An export that fails is an answer, too."""
    options: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False
    """Runs in the exporters' own environment (`environment`), with transformers 5."""
    opsets: tuple[int | None, ...] = (None,)
    dtypes: tuple[str, ...] = ("fp32",)
    whole_model: bool = True
    """Otherwise one MoE block: input ``hidden_states``, output ``output``."""

    def combinations(self, family: str) -> Iterator[tuple[int | None, str]]:
        """The opsets and element types worth asking for: every one of both for the `THOROUGH` families."""
        yield self.opsets[0], self.dtypes[0]
        if family in THOROUGH:
            yield from ((opset, self.dtypes[0]) for opset in self.opsets[1:])
            yield from ((self.opsets[0], dtype) for dtype in self.dtypes[1:])

    def export(self, family: str, directory: Path, *, opset: int | None = None, dtype: str = "fp32") -> Path:
        """Exports `family` into `directory` (made if missing), in this process. Returns the .onnx file.

        Raises:
            Exception: whatever the exporter raises; there is no common class.
        """
        directory.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(f".{self.module}", __package__)
        return module.export(family, directory, opset=opset, dtype=dtype, **self.options)


# Families of which transformers 4 and 5 both have a causal model with an ordinary cache.
_ORDINARY = (
    "qwen3_moe",
    "qwen3_moe_nonorm_dense",
    "mixtral",
    "mixtral_window",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v3_one_group",
    "deepseek_v3_32",
    "qwen2_moe",
    "qwen2_moe_32",
    "granitemoe",
    "granitemoeshared",
    "phimoe",
    "olmoe",
    "flex_olmo",
    "dbrx",
    "glm4_moe",
    "dots1",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
)
_REGISTERED = ("qwen3_moe", "qwen3_moe_nonorm_dense", "deepseek_v3", "deepseek_v3_one_group", "deepseek_v3_32", "gpt_oss")
_DIFFICULT = (
    "llama4_text",
    "deepseek_v2",
    "deepseek_v2_groups",
    "longcat_flash",
    "jetmoe",
    "minimax",
    "jamba",
    "qwen3_next",
    "granitemoehybrid",
)

_EXPORTERS = (
    Exporter(
        "optimum",
        "optimum-cli export onnx, the families that it knows",
        "optimum",
        _REGISTERED,
        opsets=(None, 14, 20, 23),
        dtypes=("fp32", "fp16", "bf16"),
    ),
    Exporter(
        "optimum_custom",
        "Optimum with a plain configuration of the user's own",
        "optimum",
        tuple(family for family in (*_ORDINARY, *_DIFFICULT) if family not in _REGISTERED),
        {"custom": True},
    ),
    Exporter(
        "torch_dynamo",
        "torch.onnx.export(dynamo=True), transformers 5, experts as batched products",
        "torch_dynamo",
        (*_ORDINARY, *_DIFFICULT, "minimax_m2", "lfm2_moe", "doge"),
        separate=True,
        opsets=(None, 23),
        dtypes=("fp32", "fp16", "bf16"),
    ),
    Exporter(
        "transformers_onnx",
        "transformers 5's OnnxExporter, experts as grouped products",
        "transformers_onnx",
        (*_ORDINARY, *_DIFFICULT, "minimax_m2", "lfm2_moe", "doge"),
        separate=True,
    ),
    Exporter(
        "transformers_onnx_cpu",
        "the same with its fusions for ONNX Runtime's CPU build",
        "transformers_onnx",
        ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "granitemoe", "phimoe"),
        {"fusions": "cpu"},
        separate=True,
    ),
    Exporter(
        "genai",
        "onnxruntime-genai's model builder",
        "genai",
        ("gpt_oss", "lfm2_moe", "granitemoehybrid", "qwen3_moe"),
        separate=True,
        dtypes=("fp32", "fp16", "int4"),
    ),
    Exporter(
        "block_torchscript",
        "torch.onnx.export(dynamo=False) of one MoE block, transformers 4",
        "block",
        (*_DIFFICULT, *_ORDINARY),
        whole_model=False,
    ),
    Exporter(
        "block_dynamo",
        "torch.onnx.export(dynamo=True) of one MoE block, transformers 5",
        "block",
        (*_DIFFICULT, "minimax_m2", "lfm2_moe", "doge"),
        {"dynamo": True},
        separate=True,
        whole_model=False,
    ),
)

EXPORTERS: Mapping[str, Exporter] = {exporter.name: exporter for exporter in _EXPORTERS}
