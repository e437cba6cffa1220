"""Verification of routers: the original nodes next to the Router that replaces them, on the same logits.

Both run in ONNX Runtime, each as a model of its own; `router_comparison` judges what they answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes.domain import DOMAIN, OPSET
from .graph_passes.router_cone import router_nodes
from .graph_passes.router_expressions import Reader, is_output_of
from .graph_passes.router_match import RouterMatch
from .graph_passes.shapes import Shapes
from .router_comparison import Comparison, Routes, compare_routes, router_rows
from .run_alone import CannotRun, run_alone, stored_constant
from .verify import Verdict

SMALLEST_SCORE = np.float32(2.0**-6)

# Of values whose type ONNX Runtime's Python interface cannot pass (bfloat16), and of all others alike: they enter and
# leave as float32, which loses nothing.
_AS_FLOAT = ".as_float"


@dataclass(frozen=True)
class _Case:
    """A router in its graph, and what it takes to run it alone."""

    match: RouterMatch
    source: ir.Model
    folder: Path
    experts: int
    rank: int
    types: dict[ir.Value, ir.DataType]
    """Of the logits and, if the bias is computed, of the bias: the inputs."""
    tables: tuple[ir.Value, ...]
    """What TopK chooses from, and what it was before groups were masked, if they are."""
    shapes: Shapes


def verify_router(
    match: RouterMatch, node: ir.Node, source: ir.Model, folder: Path, *, shapes: Shapes | None = None, seed: int = 0
) -> Verdict:
    """Compares `match`, still in its graph, with `node`.

    Args:
        match: the router.
        node: the node ort_hina::Router, not in any graph.
        source: the model of the router, for its opsets.
        folder: where the locations of external data are looked up (they have been checked).
        shapes: what is known of the graph's shapes; of a graph that was changed behind the router it has to be given.
        seed: of the random logits.

    Returns:
        A verdict; its difference and tolerance are those of the weight that comes closest to what rounding allows.

    Raises:
        OrtHinaError: the operator library is missing or cannot be loaded.
    """
    began = time.perf_counter()
    try:
        result = _compare(_case(match, source, folder, shapes or Shapes()), node, seed)
    except CannotRun as error:
        result = Comparison("not run", detail=f"ONNX Runtime cannot run the original on this machine: {error}")
    return Verdict(result.state, result.difference, result.tolerance, time.perf_counter() - began, result.detail)


def _compare(case: _Case, node: ir.Node, seed: int) -> Comparison:
    spec = case.match.call.spec
    random = np.random.default_rng(seed)
    is_divided = spec.score == "none" and spec.normalize  # by the sum of what then are scores: they are positive
    rows = router_rows(case.experts, random, finite=is_divided or spec.score == "sparse_mixer")
    if is_divided:
        rows = rows - rows.min(axis=1, keepdims=True) + SMALLEST_SCORE
    bias = random.uniform(0, 1, case.experts).astype(np.float32)
    expected = _original(case, rows, bias)
    results = []
    for part in (rows, rows[:1]):
        try:
            found = _replacement(case, node, part, bias)
        except CannotRun as error:
            return Comparison("failed", detail=f"the fused node does not run: {error}")
        stored = part.astype(case.types[case.match.call.logits].numpy()).astype(np.float64)
        results.append(compare_routes(spec, stored, expected.first(len(part)), *found))
    many, one = results
    return one if one.state == "failed" and many.state != "failed" else many


def _case(match: RouterMatch, source: ir.Model, folder: Path, shapes: Shapes) -> _Case:
    reader = Reader(shapes)
    logits, bias = match.call.logits, match.call.bias
    experts, rank = reader.columns(logits), reader.shapes.rank(logits)
    inputs = [logits] if bias is None or bias.const_value is not None else [logits, bias]
    types = {value: reader.dtype(value) for value in inputs}
    if experts is None or rank is None or None in types.values():
        raise CannotRun("the number of experts or the type of the logits could not be worked out")
    return _Case(match, source, folder, experts, rank, types, _tables(match, reader), shapes)


def _tables(match: RouterMatch, reader: Reader) -> tuple[ir.Value, ...]:
    chosen = match.ids.producer()
    if chosen.op_type != "TopK":
        return ()
    table = chosen.inputs[0]
    masked = reader.root(table)
    if match.call.spec.num_groups == 1 or not is_output_of(masked, "Where"):
        return (table,)
    return table, next(value for value in masked.producer().inputs[1:] if reader.number(value) is None)


def _inputs(case: _Case, rows: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    logits, *computed = case.types
    feeds = {logits.name + _AS_FLOAT: rows.reshape((1,) * (case.rank - 2) + rows.shape)}
    return feeds | {value.name + _AS_FLOAT: bias for value in computed}


def _original(case: _Case, rows: np.ndarray, bias: np.ndarray) -> Routes:
    """What the nodes of the graph answer."""
    match = case.match
    nodes = router_nodes((match.ids, match.weights), case.types)
    feeds = _inputs(case, rows, bias) | _onlooked(case, nodes, len(rows))
    used = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value.is_initializer())
    constants = [stored_constant(value, case.folder) for value in used if value not in case.types]
    ids, weights, *tables = _run(case, nodes, constants, feeds, (match.ids, match.weights, *case.tables))
    table, unmasked = ([array.reshape(len(rows), case.experts) for array in tables] + [None, None])[:2]
    k = match.call.spec.k
    return Routes(ids.reshape(-1, k), weights.reshape(-1, k), table, unmasked, _stored_bias(case, bias))


def _stored_bias(case: _Case, random: np.ndarray) -> np.ndarray | None:
    bias = case.match.call.bias
    if bias is None:
        return None
    stored = random.astype(case.types[bias].numpy()) if bias in case.types else bias.const_value.numpy()
    return stored.reshape(-1).astype(np.float64)


def _replacement(case: _Case, node: ir.Node, rows: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    stored = case.match.call.bias
    constants = [] if stored is None or stored in case.types else [stored_constant(stored, case.folder)]
    ids, weights = _run(case, [node], constants, _inputs(case, rows, bias), node.outputs)
    return ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, weights.shape[-1])


def _onlooked(case: _Case, nodes: list[ir.Node], rows: int) -> dict[str, np.ndarray]:
    """Zeros for the values outside of the router of which it reads nothing but the shape: as many rows as the logits."""
    inside = {output for node in nodes for output in node.outputs} | set(case.types)
    feeds = {}
    for node in nodes:
        for value in node.inputs:
            if value is None or value in inside or value.is_initializer():
                continue
            shape = case.shapes.shape(value)
            if node.op_type != "Shape" or not shape:
                raise CannotRun(f"{node.op_type} {node.name!r} reads {value.name!r}, which lies outside of the router")
            lead = (1,) * (len(shape) - 2) + (rows,)
            feeds[value.name] = np.zeros((*lead, shape[-1].constant or 1)[: len(shape)], np.float32)
    return feeds


def _run(
    case: _Case, nodes: list[ir.Node], constants: list[onnx.TensorProto], feeds: dict[str, np.ndarray], outputs
) -> list[np.ndarray]:
    return run_alone(_model(case, [ir.serde.serialize_node(node) for node in nodes], constants, feeds, outputs), feeds)


def _model(
    case: _Case, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], feeds: dict[str, np.ndarray], outputs
) -> onnx.ModelProto:
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, float32, array.shape) for name, array in feeds.items()]
    casts = [(value.name, int(dtype)) for value, dtype in case.types.items()]
    entries = [helper.make_node("Cast", [name + _AS_FLOAT], [name], to=dtype) for name, dtype in casts]
    ids, *others = outputs
    exits = [helper.make_node("Cast", [value.name], [f"{value.name}.out"], to=float32) for value in others]
    results = [helper.make_tensor_value_info(ids.name, onnx.TensorProto.INT64, None)]
    results += [helper.make_tensor_value_info(f"{value.name}.out", float32, None) for value in others]
    graph = helper.make_graph([*entries, *nodes, *exits], "router", inputs, results, constants)
    opsets = dict(case.source.graph.opset_imports) | {DOMAIN: OPSET}
    identifiers = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=identifiers, ir_version=case.source.ir_version)
