"""Verification of routers: the original nodes next to the Router that replaces them, on the same logits.

Both run in ONNX Runtime, each as a model of its own. Ids must be the same, whatever their order within a token, and so
must be the weights that belong to them. A token whose choice hangs on less than rounding is not judged.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from .graph_passes.moe_node import DOMAIN, OPSET
from .graph_passes.router_cone import router_nodes
from .graph_passes.router_expressions import Reader, is_output_of
from .graph_passes.router_match import RouterMatch
from .graph_passes.router_spec import RouterSpec
from .graph_passes.shapes import Shapes
from .verify import Verdict

UNIT = 2.0**-24
"""Half a unit in the last place of float32, relative."""
# ONNX Runtime's Sigmoid is a rational function: measured against float64, it is within 1.6e-7 everywhere, and constant
# below -18. 2^-22 is 2.4e-7.
SIGMOID_ERROR = 2.0**-22
# Rounding of the exponent (distances up to 160 in these rows) and of the exponential itself, in the softmax and its sum.
EXPONENT_ROUNDINGS = 176

# Rows of each kind. Fewer than half of all rows may be left without a judgement.
ROWS = 16
LARGEST_LOGIT = 80.0


class _CannotRun(Exception):
    """What ONNX Runtime says about a model that it cannot create a session for, or run."""


@dataclass(frozen=True)
class _Case:
    """A router in its graph, and what it takes to run it alone."""

    match: RouterMatch
    source: ir.Model
    folder: Path
    experts: int
    rank: int
    element: ir.DataType
    table: ir.Value | None
    """What TopK chooses from; `unmasked` is that before groups are masked."""
    unmasked: ir.Value | None
    random_bias: ir.Value | None
    """A bias that is not constant: it is an input, and gets random numbers."""


def verify_router(match: RouterMatch, node: ir.Node, source: ir.Model, folder: Path, *, seed: int = 0) -> Verdict:
    """Compares `match`, still in its graph, with `node`.

    Args:
        match: the router.
        node: the node ort_hina::Router, not in any graph.
        source: the model of the router, for its opsets.
        folder: where the locations of external data are looked up (they have been checked).
        seed: of the random logits.

    Returns:
        A verdict whose difference and tolerance are those of the weight that comes closest to its bound (or exceeds it most).

    Raises:
        OrtHinaError: the operator library is missing or cannot be loaded.
    """
    began = time.perf_counter()

    def verdict(state: str, difference: float | None, tolerance: float, detail: str = "") -> Verdict:
        return Verdict(state, difference, tolerance, time.perf_counter() - began, detail)

    case = _case(match, source, folder)
    if case is None:
        return verdict("not run", None, 0.0, "the number of experts or the type of the logits could not be worked out")
    feeds = router_rows(case.experts, np.random.default_rng(seed), finite=match.call.spec.score == "sparse_mixer")
    try:
        expected = _original(case, feeds)
    except _CannotRun as error:
        return verdict("not run", None, 0.0, f"ONNX Runtime cannot run the original on this machine: {error}")
    for rows in (feeds, feeds[:1]):
        try:
            found = _replacement(case, node, rows)
        except _CannotRun as error:
            return verdict("failed", None, 0.0, f"the fused node does not run: {error}")
        answer = compare_routes(match.call.spec, _as_stored(case, rows), expected.first(len(rows)), *found)
        if answer[0] != "verified" or len(rows) == 1:
            break
        whole = answer
    state, difference, tolerance, detail = whole if answer[0] == "inconclusive" and len(rows) == 1 else answer
    return verdict(state, difference, tolerance, detail)


# ---- rows


def router_rows(experts: int, random: np.random.Generator, *, finite: bool = False) -> np.ndarray:
    """Logits [rows, experts] in float32 on which routers can be told apart.

    Distinct numbers on a grid from -8 to 8 (so that most choices hang on more than rounding), exact ties of two and of
    four, numbers up to ±80, tiny ones, and, unless `finite`, rows with -inf.
    """
    order = random.permuted(np.tile(np.arange(experts), (ROWS, 1)), axis=1)
    step = 2.0 ** -math.ceil(math.log2(max(experts, 2) / 16))
    kinds = [
        (order - experts // 2) * min(step, 0.125),
        (order // 2 - experts // 4) * min(2 * step, 0.25),
        (order // 4 - experts // 8) * min(4 * step, 0.5),
        np.zeros((1, experts)),
        random.uniform(-LARGEST_LOGIT, LARGEST_LOGIT, (ROWS, experts)),
        order * 2.0**-100,
    ]
    if not finite:
        blocked = np.where(order < experts // 2, -np.inf, kinds[0])
        kinds += [blocked, np.where(order == 0, 1.0, -np.inf)]
    return np.concatenate(kinds).astype(np.float32)


def _as_stored(case: _Case, rows: np.ndarray) -> np.ndarray:
    return rows.astype(case.element.numpy()).astype(np.float64)


# ---- comparing


@dataclass(frozen=True)
class Routes:
    """What the original answers: ids and weights [T, k], and the table [T, E] that it chose from, before (`unmasked`) and
    after groups were masked. None: there is no such table (sparse mixer)."""

    ids: np.ndarray
    weights: np.ndarray
    table: np.ndarray | None
    unmasked: np.ndarray | None
    bias: np.ndarray | None = None

    def first(self, count: int) -> Routes:
        parts = (self.ids, self.weights, self.table, self.unmasked)
        return Routes(*(None if part is None else part[:count] for part in parts), self.bias)


def compare_routes(
    spec: RouterSpec, logits: np.ndarray, expected: Routes, ids: np.ndarray, weights: np.ndarray
) -> tuple[str, float | None, float, str]:
    """Judges the `ids` and `weights` of a Router on `logits` [T, E].

    Returns:
        State, largest difference of a weight against its bound, that bound, and details, as a `Verdict` has them.
    """
    shape = expected.ids.shape
    if ids.shape != shape or weights.shape != shape:
        return "failed", None, 0.0, f"the fused node answers with shapes {ids.shape} and {weights.shape}, expected {shape}"
    errors = _score_errors(spec, logits)
    judged = decided(spec, logits, expected, errors)
    if judged.sum() * 2 < len(judged):
        return "inconclusive", None, 0.0, "most choices of the random rows hang on rounding"
    order, other = np.argsort(expected.ids, axis=1), np.argsort(ids, axis=1)
    wrong = (np.take_along_axis(expected.ids, order, 1) != np.take_along_axis(ids, other, 1)).any(axis=1) & judged
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        return "failed", None, 0.0, f"row {row}: the fused node chooses experts {ids[row]}, the original {expected.ids[row]}"
    left = np.take_along_axis(expected.weights, order, 1).astype(np.float64)[judged]
    right = np.take_along_axis(weights, other, 1).astype(np.float64)[judged]
    limit = np.take_along_axis(weight_bounds(spec, logits, expected.ids, errors), order, 1)[judged]
    return _judge(left, right, limit)


def _judge(expected: np.ndarray, found: np.ndarray, limit: np.ndarray) -> tuple[str, float | None, float, str]:
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isnan(expected) & np.isnan(found) | (expected == found), 0.0, np.abs(expected - found))
    if np.isnan(difference).any():
        return "failed", None, 0.0, "a weight is NaN on one side only"
    place = np.unravel_index(np.argmax(difference / limit), limit.shape)
    worst, bound = float(difference[place]), float(limit[place])
    if worst <= bound:
        return "verified", worst, bound, ""
    return "failed", worst, bound, f"a weight differs by {worst:.2g}, and rounding allows {bound:.2g}"


def decided(spec: RouterSpec, logits: np.ndarray, expected: Routes, errors: np.ndarray) -> np.ndarray:
    """bool [T]: whether the choice of a token hangs on more than rounding, or on ties of equal inputs alone."""
    if expected.table is None:
        return np.ones(len(logits), bool)  # compares logits themselves
    names = np.unique(_named(logits, expected.bias), axis=-1, return_inverse=True)[1].reshape(logits.shape)
    table = expected.table.astype(np.float64)
    unmasked = table if expected.unmasked is None else expected.unmasked.astype(np.float64)
    outside = (table != unmasked) & (table == spec.masked_score)
    slack = np.where(outside, 0.0, errors + UNIT * np.abs(np.nan_to_num(table)))
    sure = _boundary_is_sure(table, slack, np.where(outside, -1, names), spec.k)
    if spec.num_groups > 1:
        sure &= _groups_are_sure(spec, unmasked, errors)
    return sure


def _named(logits: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Pairs (logit, bias) as the columns of [2, T * E]: equal pairs have equal scores in any arithmetic."""
    other = np.zeros(logits.shape[1]) if bias is None else bias.astype(np.float64)
    return np.stack([logits.reshape(-1), np.broadcast_to(other, logits.shape).reshape(-1)])


def _boundary_is_sure(values: np.ndarray, slack: np.ndarray, names: np.ndarray, k: int) -> np.ndarray:
    """bool [T]: nothing that was left out is within rounding of the last that was taken, unless all of these are equal."""
    order = np.argsort(-values, axis=1, kind="stable")
    last = np.take_along_axis(values, order[:, k - 1 : k], 1)
    near = np.abs(values - last) <= slack + np.take_along_axis(slack, order[:, k - 1 : k], 1)
    near |= values == last  # infinities
    rank = np.argsort(order, axis=1)
    left_out = (near & (rank >= k)).any(axis=1)
    lowest = np.where(near, names, names.max() + 1).min(axis=1)
    highest = np.where(near, names, -2).max(axis=1)
    return ~left_out | (lowest == highest)


def _groups_are_sure(spec: RouterSpec, table: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """bool [T]: no group that was left out is within rounding of the last that was taken."""
    split = (len(table), spec.num_groups, -1)
    best = -np.sort(-table.reshape(split), axis=2)
    worth = best[:, :, :1] if spec.group_score == "max" else best[:, :, :2]
    slack = 2 * errors.reshape(split).max(axis=2) + 2 * UNIT * np.abs(worth).sum(axis=2)
    # Groups with equal scores but different members count as near: no names.
    names = np.broadcast_to(np.arange(spec.num_groups), slack.shape)
    return _boundary_is_sure(worth.sum(axis=2), slack, names, spec.top_groups)


def _score_errors(spec: RouterSpec, logits: np.ndarray) -> np.ndarray:
    """How far two float32 evaluations of a score may be apart: [T, E]."""
    if spec.score == "none" or spec.score == "sparse_mixer":
        return np.zeros(logits.shape)
    if spec.score == "sigmoid":
        return np.full(logits.shape, SIGMOID_ERROR)
    return 2 * _scores(spec, logits) * (EXPONENT_ROUNDINGS + logits.shape[1]) * UNIT + 2.0**-126


def _scores(spec: RouterSpec, logits: np.ndarray) -> np.ndarray:
    if spec.score == "softmax":
        return _softmax(logits)
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits)) if spec.score == "sigmoid" else logits


def _softmax(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


def weight_bounds(spec: RouterSpec, logits: np.ndarray, ids: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """How far two float32 evaluations of the weights at `ids` may be apart: [T, k], above 0."""
    relative = 2 * (EXPONENT_ROUNDINGS + logits.shape[1]) * UNIT
    if spec.score == "sparse_mixer":
        return np.full(ids.shape, relative)
    weights, bound = (np.take_along_axis(part, ids, 1) for part in (_scores(spec, logits), errors))
    if spec.weight_function == "softmax":
        weights, bound = _softmax(weights), np.full(ids.shape, relative) + 2 * bound.max(axis=1, keepdims=True)
    elif spec.weight_function == "sigmoid":
        weights, bound = 1 / (1 + np.exp(-weights)), bound / 4 + SIGMOID_ERROR
    if spec.normalize:
        total = np.maximum(weights.sum(axis=1, keepdims=True), spec.normalize_min) + spec.normalize_epsilon
        # Where the sum may be wrong by as much as it is, nothing is known but that weights are between 0 and 1.
        spread = bound.sum(axis=1, keepdims=True) / np.maximum(total, 1e-300)
        weights = weights / np.maximum(total, 1e-300)
        bound = np.where(spread < 0.5, 2 * (bound / np.maximum(total, 1e-300) + weights * spread), 1.0)
    return (bound + (spec.k + 8) * UNIT * np.abs(np.nan_to_num(weights, posinf=0, neginf=0)) + 2.0**-126) * max(
        abs(spec.scale), 2.0**-100
    )


# ---- running


def _case(match: RouterMatch, source: ir.Model, folder: Path) -> _Case | None:
    reader = Reader(Shapes())
    logits, bias = match.call.logits, match.call.bias
    experts, rank, element = reader.columns(logits), reader.shapes.rank(logits), reader.dtype(logits)
    if experts is None or rank is None or element is None:
        return None
    table = match.ids.producer().inputs[0] if match.ids.producer().op_type == "TopK" else None
    masked = None if table is None else reader.root(table)
    unmasked = None
    if match.call.spec.num_groups > 1 and is_output_of(masked, "Where"):
        unmasked = next(v for v in masked.producer().inputs[1:] if reader.number(v) is None)
    computed = bias is not None and bias.const_value is None
    return _Case(match, source, folder, experts, rank, element, table, unmasked, bias if computed else None)


def _inputs(case: _Case, rows: np.ndarray) -> dict[str, np.ndarray]:
    shape = (1,) * (case.rank - 2) + rows.shape
    feeds = {case.match.call.logits.name: rows.astype(case.element.numpy()).reshape(shape)}
    if case.random_bias is not None:
        dtype = (Reader(Shapes()).dtype(case.random_bias) or ir.DataType.FLOAT).numpy()
        feeds[case.random_bias.name] = np.random.default_rng(1).uniform(0, 1, case.experts).astype(dtype)
    return feeds


def _original(case: _Case, rows: np.ndarray) -> Routes:
    match = case.match
    nodes = router_nodes((match.ids, match.weights), (match.call.logits, case.random_bias))
    feeds = _inputs(case, rows) | _onlooked(case, nodes, len(rows))
    tables = [value for value in (case.table, case.unmasked) if value is not None]
    ids, weights, *found = _run(case, [ir.serde.serialize_node(node) for node in nodes], _constants(case, nodes), feeds,
                                [match.ids, match.weights, *tables])  # fmt: skip
    k = match.call.spec.k
    flat = [array.astype(np.float64).reshape(-1, case.experts) for array in found] + [None, None]
    return Routes(ids.reshape(-1, k), weights.reshape(-1, k), flat[0], flat[1], _bias(case, feeds))


def _bias(case: _Case, feeds: dict[str, np.ndarray]) -> np.ndarray | None:
    bias = case.match.call.bias
    if bias is None:
        return None
    stored = feeds[bias.name] if case.random_bias is not None else bias.const_value.numpy()
    return stored.reshape(-1).astype(np.float64)


def _replacement(case: _Case, node: ir.Node, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bias = case.match.call.bias
    constants = [] if bias is None or bias is case.random_bias else [_constant(bias, case.folder)]
    k = case.match.call.spec.k
    ids, weights = _run(case, [ir.serde.serialize_node(node)], constants, _inputs(case, rows), node.outputs)
    return ids.reshape(-1, k), weights.reshape(-1, k)


def _constants(case: _Case, nodes: list[ir.Node]) -> list[onnx.TensorProto]:
    used = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value.is_initializer())
    return [_constant(value, case.folder) for value in used if value is not case.match.call.logits]


def _constant(value: ir.Value, folder: Path) -> onnx.TensorProto:
    """External data by its real path, from the root: its place has been checked when the model was read."""
    proto = ir.serde.serialize_tensor(value.const_value)
    proto.name = value.name
    for entry in proto.external_data:
        if entry.key == "location":
            entry.value = os.path.relpath((folder / entry.value).resolve(), os.sep)
    return proto


def _onlooked(case: _Case, nodes: list[ir.Node], rows: int) -> dict[str, np.ndarray]:
    """Zeros for the values outside of the router of which it reads nothing but the shape: as many rows as the logits."""
    inside = {output for node in nodes for output in node.outputs} | {case.match.call.logits, case.random_bias}
    shapes = Shapes()
    feeds = {}
    for node in nodes:
        for value in node.inputs:
            if value is None or value in inside or value.is_initializer():
                continue
            shape = shapes.shape(value)
            if node.op_type != "Shape" or shape is None:
                raise _CannotRun(f"{node.op_type} {node.name!r} reads {value.name!r}, which lies outside of the router")
            lead = (1,) * (len(shape) - 2) + (rows,)
            feeds[value.name] = np.zeros((lead + (shape[-1].constant or 1,))[: len(shape)], np.float32)
    return feeds


def _run(
    case: _Case,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    feeds: dict[str, np.ndarray],
    outputs: list[ir.Value],
) -> list[np.ndarray]:
    import onnxruntime

    from .library import register

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # The graph as it is.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.sep)
    if any(node.domain == DOMAIN for node in nodes):
        register(options)
    try:
        model = _model(case, nodes, constants, feeds, outputs)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        wanted = {value.name for value in session.get_inputs()}
        return session.run_with_ort_values(
            None, {name: _ort_value(array) for name, array in feeds.items() if name in wanted}
        ) and session.run(None, {name: array for name, array in feeds.items() if name in wanted})
    except Exception as error:  # onnxruntime's own exception types have no public common base
        raise _CannotRun(str(error)) from error


def _model(
    case: _Case,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    feeds: dict[str, np.ndarray],
    outputs: list[ir.Value],
) -> onnx.ModelProto:
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in feeds.items()
    ]
    # Neither types nor shapes: these are what they are in the whole model.
    graph = onnx.helper.make_graph(nodes, "router", inputs, [onnx.ValueInfoProto(name=value.name) for value in outputs])
    graph.initializer.extend(constants)
    opsets = dict(case.source.graph.opset_imports) | {DOMAIN: OPSET}
    identifiers = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.helper.make_model(graph, opset_imports=identifiers, ir_version=case.source.ir_version)
