"""Writes the exports that the tests read: graphs as the exporters wrote them, without weights (`seeded_weights`).

``python -m ort_hina.models.fixtures FOLDER`` exports everything again, which takes minutes and needs the exporters' own
environment. ``index.json`` in FOLDER tells of each file where it comes from and what it should hold.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

from .comparison import ROUNDING, differences, scale
from .environment import exporters_python, run_jobs
from .export_folder import Export, Exported, export_all
from .families import expert_sizes
from .onnx_cases import CannotRun, open_session, run_block, run_model, state_sizes
from .reference_folder import Reference, compute_references, read_reference
from .seeded_weights import strip_weights

INDEX = "index.json"

_WITH_TRANSFORMERS_4 = {
    "optimum": ("qwen3_moe", "qwen3_moe_nonorm_dense", "deepseek_v3", "deepseek_v3_one_group", "deepseek_v3_32", "gpt_oss"),
    "optimum_custom": (
        "olmoe",
        "dbrx",
        "flex_olmo",
        "mixtral",
        "qwen2_moe",
        "qwen2_moe_32",
        "phimoe",
        "glm4_moe",
        "dots1",
        "granitemoe",
        "granitemoeshared",
        "ernie4_5_moe",
        "hunyuan_v1_moe",
        "jetmoe",
        "longcat_flash",
    ),
    "block_torchscript": (
        "llama4_text",
        "deepseek_v2",
        "deepseek_v2_groups",
        "longcat_flash",
        "glm4_moe",
        "jamba",
        "minimax",
        "qwen3_next",
        "granitemoe",
    ),
}
_WITH_TRANSFORMERS_5 = {
    "torch_dynamo": (
        "qwen3_moe",
        "qwen3_moe_nonorm_dense",
        "mixtral",
        "gpt_oss",
        "deepseek_v3",
        "deepseek_v3_one_group",
        "qwen2_moe",
        "granitemoe",
        "granitemoeshared",
        "phimoe",
        "olmoe",
        "flex_olmo",
        "glm4_moe",
        "ernie4_5_moe",
        "hunyuan_v1_moe",
        "minimax_m2",
        "jetmoe",
        "doge",
    ),
    "transformers_onnx": (
        "qwen3_moe",
        "mixtral",
        "gpt_oss",
        "deepseek_v3",
        "deepseek_v2_groups",
        "qwen2_moe",
        "granitemoe",
        "phimoe",
        "ernie4_5_moe",
        "lfm2_moe",
        "jetmoe",
    ),
    "transformers_onnx_cpu": ("qwen3_moe", "gpt_oss"),
    "genai": ("gpt_oss", "lfm2_moe", "granitemoehybrid"),
    "block_dynamo": ("llama4_text", "deepseek_v2", "deepseek_v2_groups", "jamba", "qwen3_next", "lfm2_moe"),
}
_OTHERS = (
    Export("qwen3_moe", "optimum", 14),
    Export("qwen3_moe", "optimum", 23),
    Export("qwen3_moe", "optimum", None, "fp16"),
    Export("deepseek_v3", "optimum", 14),
    Export("deepseek_v3", "optimum", None, "fp16"),
    Export("gpt_oss", "optimum", None, "fp16"),
    Export("qwen3_moe", "torch_dynamo", 23),
    Export("qwen3_moe", "torch_dynamo", None, "fp16"),
    Export("gpt_oss", "torch_dynamo", None, "fp16"),
    Export("deepseek_v3", "torch_dynamo", None, "fp16"),
    Export("qwen3_moe", "transformers_onnx", None, "fp16"),
    Export("lfm2_moe", "genai", None, "int4"),
)

EXPORTS = (
    *(Export(family, exporter) for exporter, families in _WITH_TRANSFORMERS_4.items() for family in families),
    *(export for export in _OTHERS if not export.by.separate),
    *(Export(family, exporter) for exporter, families in _WITH_TRANSFORMERS_5.items() for family in families),
    *(export for export in _OTHERS if export.by.separate),
)

_EXPERT_NODE = re.compile(r"(?:/layers\.(\d+))?/.*?experts\.(\d+)/")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="export the graphs that the tests read")
    parser.add_argument("folder", type=Path, help="where to write them; what it holds already is replaced")
    parser.add_argument("--exports", type=Path, help="keep the exports here, and take those that are there")
    options = parser.parse_args(arguments)
    if exporters_python() is None:
        parser.error("the exporters' own environment is not there; make it with: make exporters")
    with tempfile.TemporaryDirectory() as temporary:
        write_fixtures(options.folder, options.exports or Path(temporary))


def write_fixtures(folder: Path, exports: Path) -> None:
    """Exports `EXPORTS` into the folder `exports` and writes a fixture of each, and the index, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.onnx.gz"):
        old.unlink()
    references = compute_references([Reference.of(export) for export in EXPORTS], exports / "references")
    versions = {separate: _versions(separate) for separate in (False, True)}
    index = {}
    for exported in export_all(EXPORTS, exports):
        name = exported.export.name
        if exported.path is None:
            print(f"{name}: {exported.error}", flush=True)
            continue
        model = onnx.load(exported.path)
        index[name] = {
            "versions": versions[exported.export.by.separate],
            **_answers(exported, references[Reference.of(exported.export)]),
            **_description(exported, model),
        }
        if index[name]["missing_experts"]:  # even where no case chose one of them
            index[name]["export"] = "wrong"
        size = write_fixture(model, folder / f"{name}.onnx.gz")
        print(f"{name}: {size} bytes, {index[name]['export']}", flush=True)
    (folder / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_fixture(model: onnx.ModelProto, file: Path) -> int:
    """Writes `model` (which is changed) without weights and without notes of the exporter to `file`. Returns its size."""
    strip_weights(model)
    _strip_notes(model)
    # No time and no name in the header: equal graphs give equal files.
    file.write_bytes(gzip.compress(model.SerializeToString(deterministic=True), mtime=0))
    return file.stat().st_size


def _strip_notes(model: onnx.ModelProto) -> None:
    """Stack traces of the exporter: they are large, and tell of the machine that exported."""
    del model.metadata_props[:]
    if model.producer_name == "onnxruntime-genai":  # adds the commit of whatever repository it is run in
        model.producer_version = model.producer_version.partition("+")[0]
    for graph in (model.graph, *model.functions):
        del graph.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
        value.doc_string = ""


def _description(exported: Exported, model: onnx.ModelProto) -> dict[str, Any]:
    export = exported.export
    experts, chosen = expert_sizes(export.family)
    return {
        "family": export.family,
        "exporter": export.exporter,
        "whole_model": export.by.whole_model,
        "dtype": export.dtype,
        "opset": next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")),
        "experts": experts,
        "k": chosen,
        "missing_experts": _missing_experts(model, experts),
        "state_sizes": state_sizes(exported.path.parent),
    }


def _missing_experts(model: onnx.ModelProto, experts: int) -> dict[str, list[int]]:
    """By layer, the experts without a node, where the exporter left their numbers in the names of nodes."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in model.graph.node:
        if match := _EXPERT_NODE.match(node.name.removeprefix("/model")):
            found[match[1] or "block"].add(int(match[2]))
    missing = {layer: sorted(set(range(experts)) - numbers) for layer, numbers in found.items()}
    return {layer: numbers for layer, numbers in missing.items() if numbers}


def _answers(exported: Exported, reference: Path | str) -> dict[str, Any]:
    """Whether the file, with the weights that it was exported with, answers what PyTorch answers."""
    if isinstance(reference, str):
        return {"export": f"not compared: PyTorch fails: {reference}"}
    try:
        session = open_session(exported.path)
        whole = exported.export.by.whole_model
        sizes = state_sizes(exported.path.parent)
        answers, errors = run_model(session, sizes) if whole else run_block(session)
    except CannotRun as error:
        return {"export": f"wrong: does not run: {error}"}
    expected = read_reference(reference)
    allowed = ROUNDING.get(exported.export.dtype)
    if allowed is None:
        return {"export": "not compared: quantised"}
    apart = {case: difference / scale(expected) for case, difference in differences(answers, expected).items()}
    wrong = {case: float(f"{ratio:.1e}") for case, ratio in apart.items() if ratio > allowed}
    state = "right" if not errors and not wrong else "wrong"
    return {"export": state, "cases_that_fail": sorted(errors), "cases_that_differ": wrong}


def _versions(separate: bool) -> dict[str, str]:
    (result,) = run_jobs([{"do": "versions"}], separate=separate)
    return result["versions"]


if __name__ == "__main__":
    main()
