"""What is left of the layers' small nodes, after everything else: norms and residual sums become ONNX Runtime's own fused
operators, each spelling verified by running it; casts and reshapes that change nothing go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes import rms_norm, skip_norm
from .graph_passes.cleanup import remove_unused
from .graph_passes.element_types import ElementTypes
from .graph_passes.idle_casts import remove_idle_casts
from .graph_passes.residual_shapes import follow_residuals
from .graph_passes.rms_norm import RMSNorm
from .graph_passes.router_rows import remove_router_reshapes
from .graph_passes.shapes import Shapes
from .graph_passes.skip_norm import SkipNorm
from .model_file import ModelFile
from .run_alone import CannotRun, run_alone, stored_constant

UNIT = 2.0**-24
HALF_UNIT = 2.0**-11
"""Of float16."""
SMALLEST_HALF = 2.0**-24
"""A float16 result below the normal range is within half of this."""

# Of an output, float32 steps besides the mean: shift, root, inverse, two products, in each of two evaluations; and steps
# that round to float16: in the original its norm, its product and (with a sum, which also moves the mean) the sum, twice.
FLOAT_STEPS = 12
HALF_STEPS = {"norm": 3, "sum": 6}

_ROWS = 4


@dataclass
class Tidied:
    norms: int = 0
    """Spelled-out norms that became one node."""
    sums: int = 0
    """Residual sums that were joined with the norm behind them."""
    warnings: list[str] = field(default_factory=list)


def tidy(source: ModelFile, verify: bool = True) -> Tidied:
    """Tidies the model of `source`, sorted and without what nothing uses.

    Args:
        verify: run one of each spelling next to its replacement in ONNX Runtime; a spelling that fails stays.
    """
    graph = source.model.graph
    done = Tidied()
    remove_idle_casts(graph)
    done.norms = _fuse(source, rms_norm.find(graph, *_known(graph)), rms_norm, _compare_norm, verify, done)
    remove_unused(graph)
    done.sums = _fuse(source, skip_norm.find(graph, *_known(graph)), skip_norm, _compare_sum, verify, done)
    remove_router_reshapes(graph, _known(graph)[0])
    remove_unused(graph)
    return done


def _known(graph: ir.Graph) -> tuple[Shapes, ElementTypes]:
    shapes = Shapes()
    follow_residuals(graph, shapes)
    return shapes, ElementTypes(graph)


def _fuse(
    source: ModelFile, found: Sequence, fusion, compare: Callable[..., str], verify: bool, done: Tidied
) -> int:
    """Fuses what was found, apart from spellings that fail; returns how many."""
    failures: dict[tuple, str] = {}
    fused = 0
    for match in found:
        node = fusion.make_node(match)
        if verify and match.pattern not in failures:
            failures[match.pattern] = compare(match, node, source)
            if failures[match.pattern]:
                done.warnings.append(f"norms as {node.name!r} stay as they are: {failures[match.pattern]}")
        if not failures.get(match.pattern):
            fusion.put_node(source.model.graph, match, node)
            fused += 1
    return fused


def _compare_norm(norm: RMSNorm, node: ir.Node, source: ModelFile) -> str:
    feeds = {norm.x.name: _rows(norm, 0)}
    return _difference(norm.nodes, [node], feeds, [norm.output.name], norm.width, HALF_STEPS["norm"], source)


def _compare_sum(pair: SkipNorm, node: ir.Node, source: ModelFile) -> str:
    feeds = {}
    for seed, value in enumerate(pair.add.inputs):
        feeds[value.name] = _rows(pair, seed)
    outputs = [value.name for value in reversed(node.outputs) if value.name]
    return _difference([pair.add, pair.norm], [node], feeds, outputs, pair.width, HALF_STEPS["sum"], source)


def _rows(match: RMSNorm | SkipNorm, seed: int) -> np.ndarray:
    """Random tokens of several sizes; those of the size of epsilon's root show what epsilon is."""
    sizes = np.array([1.0, max(match.epsilon, 1e-12) ** 0.5, 30.0, 1e-2])[:, None]
    rows = np.random.default_rng(seed).standard_normal((_ROWS, match.width)) * sizes
    return rows.astype(match.dtype.numpy())[None]


def _difference(
    original: Sequence[ir.Node],
    replacement: Sequence[ir.Node],
    feeds: dict[str, np.ndarray],
    outputs: list[str],
    width: int,
    half_steps: int,
    source: ModelFile,
) -> str:
    """What is wrong with the replacement's answers; empty: nothing."""
    try:
        expected = run_alone(_model(original, feeds, outputs, source), feeds)
    except CannotRun:
        return ""  # the original does not run here, so nobody can have relied on it
    try:
        found = run_alone(_model(replacement, feeds, outputs, source), feeds)
    except CannotRun as error:
        return f"the fused node does not run: {error}"
    for before, after in zip(expected, found, strict=True):
        if before.dtype != after.dtype or before.shape != after.shape:
            return f"{after.dtype} {after.shape} instead of {before.dtype} {before.shape}"
        allowed = _allowed(before, width, half_steps)
        excess = np.abs(after.astype(np.float64) - before) / allowed
        if not excess.max() <= 1:  # true for NaN
            return f"verification failed: a difference of {excess.max():.2g} times what rounding explains"
    return ""


def _allowed(answer: np.ndarray, width: int, half_steps: int) -> np.ndarray:
    """How far two evaluations may be apart: each sums `width` squares, with an error of gamma(width) of a sum of positive
    numbers, of which the root takes half."""
    gamma = width * UNIT / (1 - width * UNIT)
    relative, absolute = gamma + FLOAT_STEPS * UNIT, 2.0**-126
    if answer.dtype == np.float16:
        relative, absolute = relative + half_steps * HALF_UNIT, half_steps * SMALLEST_HALF
    return relative * np.abs(answer.astype(np.float64)) + absolute


def _model(
    nodes: Sequence[ir.Node], feeds: dict[str, np.ndarray], outputs: list[str], source: ModelFile
) -> onnx.ModelProto:
    made = {value for node in nodes for value in node.outputs}
    used = {value for node in nodes for value in node.inputs if value is not None} - made
    inputs = [_input_info(name, array) for name, array in feeds.items()]
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "norm",
        inputs,
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [stored_constant(value, source.folder) for value in used if value.is_initializer() and value.name not in feeds],
    )
    opsets = {**source.model.graph.opset_imports}
    opsets.setdefault(skip_norm.DOMAIN, skip_norm.OPSET)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=source.model.ir_version)


def _input_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, [None] * (array.ndim - 1) + [array.shape[-1]])
