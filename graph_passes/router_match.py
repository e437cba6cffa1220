"""Recognising routers: from the expert ids and routing weights of a layer back to the logits.

What lies between must be one of the expressions that `RouterSpec` can say, operator by operator:

    scores    = Softmax(logits) | Sigmoid(logits) | logits
    selection = scores [+ bias] [masked by groups, see `router_groups`]
    ids       = TopK(selection).indices
    weights   = scores at ids [-> Softmax or Sigmoid over the chosen] [/ (sum, clipped or + epsilon)] [* scale]

or the sparse mixer (`router_sparse_mixer`). Nothing is concluded from names. What is equal only in exact arithmetic is
refused, with three exceptions that change weights by roundings: a sum of chosen weights in another order, ``w * (1 / s)``
for ``w / s``, and ``1 / (1 + exp(-x))`` for Sigmoid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from .constants import attribute, initializer_tensor, is_standard
from .meanings import Refusal
from .router_cone import router_nodes, unused_nodes
from .router_expressions import (
    Reader,
    TopK,
    is_output_of,
    is_power_of_two,
    pairs,
    refuse,
    said,
)
from .router_groups import Groups, read_groups
from .router_sparse_mixer import read_sparse_mixer
from .router_spec import RouterCall, RouterSpec
from .shapes import Shapes

_LOGIT_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_SUMS = frozenset({"ReduceSum", "ReduceL1"})
# Below this a sum has an inverse that overflows float32, and w * (1 / s) is not w / s.
_SMALLEST_INVERTIBLE = 2.0**-126
# Behind these operators scores are still recognisable as scores: a router that has one in an unknown place is refused.
_NEAR_SCORES = frozenset({"Cast", "Add", "Sub", "Mul", "Div", "Log", "Exp", "Where", "Clip", "Reshape", "Identity", "Neg"})
_SCORES = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "Hardmax", "HardSigmoid"})
_HOW_NEAR = 6


@dataclass(frozen=True)
class RouterMatch:
    """A router between `call.logits` and the two values that its layer uses."""

    call: RouterCall
    ids: ir.Value
    """int64 [..., k], as many axes as the logits: what the first output of a Router replaces."""
    weights: ir.Value
    """float32, of the shape of `ids`: what the second output replaces."""
    nodes: tuple[ir.Node, ...]
    """All that computes nothing else than the two, each after what it needs: unused once they are replaced."""


@dataclass(frozen=True)
class _Selection:
    """What TopK chooses from: `scores` + `bias`, and `table` is that before groups are masked."""

    scores: ir.Value
    table: ir.Value
    logits: ir.Value
    score: str
    bias: ir.Value | None
    groups: Groups | None
    masked: ir.Value


@dataclass(frozen=True)
class _Weights:
    """How the weights follow from the chosen scores."""

    function: str = "none"
    normalize: bool = False
    epsilon: float = 0.0
    minimum: float = 0.0
    inverted: bool = False
    """Multiplied by the inverse of the sum, instead of divided by it."""
    masked: bool = False
    """Taken from the scores after groups were masked."""
    scale: float = 1.0


def match_router(shapes: Shapes, ids: ir.Value, weights: ir.Value) -> RouterMatch:
    """The router that computes `ids` and `weights`.

    Args:
        shapes: of the graph.
        ids: expert ids, integers [T, k] or a view of them.
        weights: the routing weights that belong to them.

    Raises:
        Refusal: they are not what the operator Router computes; the reason names the node.
    """
    reader = Reader(shapes)
    chosen = reader.root(ids)
    if is_output_of(chosen, "Concat"):
        spec, logits, ids, weights = read_sparse_mixer(reader, chosen.producer(), _before_rounding(reader, weights))
        return _match(reader, spec, logits, None, ids, weights)
    top = reader.top_k(chosen)
    if top is None or chosen is not top.indices:
        raise Refusal(f"the expert ids {ids.name!r} are not chosen by a TopK")
    selection = _read_selection(reader, top)
    top_weights = reader.root(_before_rounding(reader, weights))
    steps = _read_weights(reader, top_weights, top, selection)
    spec = _spec(top, selection, steps)
    _check_spec(spec, steps, top, never_negative=_is_narrow_softmax(reader, selection.scores))
    return _match(reader, spec, selection.logits, selection.bias, top.indices, top_weights, top)


def _match(
    reader: Reader,
    spec: RouterSpec,
    logits: ir.Value,
    bias: ir.Value | None,
    ids: ir.Value,
    weights: ir.Value,
    top: TopK | None = None,
) -> RouterMatch:
    logits = _logits_with_rows_of(reader, logits, ids)
    experts = reader.columns(logits)
    if experts is None or not 1 <= spec.k <= experts:
        count = "an unknown number of" if experts is None else experts
        raise Refusal(f"the ids {ids.name!r} are {spec.k} of {count} experts")
    if bias is not None:
        bias = _bias_vector(reader, bias, experts, ids)
    if not reader.same_shape(ids, weights):
        raise Refusal(f"the routing weights {weights.name!r} are not proved to have the shape of the ids {ids.name!r}")
    if reader.dtype(weights) != ir.DataType.FLOAT:
        raise Refusal(f"the routing weights {weights.name!r} are not computed in FLOAT")
    nodes = unused_nodes(router_nodes((ids, weights), (logits, bias)), (ids, weights))
    if top is not None and not top.is_sorted and top.values is not weights and top.node not in nodes:
        # The order of its values is left open: others may pair them with the ids, which come in the Router's order.
        refuse(top.node, "is not sorted, and its values have other uses beside the router")
    return RouterMatch(RouterCall(spec, logits, bias), ids, weights, nodes)


def _logits_with_rows_of(reader: Reader, logits: ir.Value, ids: ir.Value) -> ir.Value:
    """The first value behind `logits` and its views that has the axes of `ids` (and a type that the operator takes)."""
    views = [value for value in reader.roots(logits) if (reader.shapes.rank(value) or 0) > 1]
    fitting = [value for value in views if reader.same_rows(value, ids)]
    if not fitting:
        raise Refusal(f"the logits {logits.name!r} are not proved to have the same axes as the expert ids {ids.name!r}")
    if fitting[-1].is_initializer():
        raise Refusal(f"the logits {fitting[-1].name!r} are an initializer")
    found = reader.dtype(fitting[-1])
    if found not in _LOGIT_TYPES:
        came = "unknown" if found is None else found.name
        raise Refusal(f"the logits {fitting[-1].name!r} are of type {came}: expected FLOAT, FLOAT16 or BFLOAT16")
    return fitting[-1]


# ---- selection


def _read_selection(reader: Reader, top: TopK) -> _Selection:
    masked = reader.root(top.table)
    groups = None
    table = masked
    if is_output_of(masked, "Where"):
        groups = read_groups(reader, masked.producer())
        table = groups.table
        if not reader.same_rows(top.indices, masked):
            refuse(top.node, "chooses from a table whose axes could not be worked out")
    scores, bias = _split_bias(reader, table)
    score, logits = _read_score(reader, scores)
    if score == "none" and not _is_narrow_softmax(reader, scores):
        _check_logits(scores)
    return _Selection(scores, table, logits, score, bias, None if groups and groups.choose_all else groups, masked)


def _split_bias(reader: Reader, table: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """`table` as scores plus a bias, if it is such a sum; logits plus a bias are logits."""
    if is_output_of(table, "Add"):
        for scores, bias in pairs(table.producer()):
            root = reader.root(scores)
            if _is_score(reader, root):
                if not reader.same_shape(scores, table):
                    refuse(table.producer(), "adds to the scores something of another shape")
                return root, bias
    return table, None


def _is_score(reader: Reader, value: ir.Value) -> bool:
    return is_output_of(value, "Softmax") or reader.sigmoid_of(value) is not None


def _read_score(reader: Reader, scores: ir.Value) -> tuple[str, ir.Value]:
    """The name of the scoring function, and the logits."""
    if _is_narrow_softmax(reader, scores):
        return "none", scores
    if is_output_of(scores, "Softmax"):
        return "softmax", reader.softmax_of(scores.producer())
    logits = reader.sigmoid_of(scores)
    return ("none", scores) if logits is None else ("sigmoid", logits)


def _is_narrow_softmax(reader: Reader, scores: ir.Value) -> bool:
    """A softmax in 16 bits, which the operator would compute in float: it stays in the graph, and the operator takes its
    output for the logits."""
    return is_output_of(scores, "Softmax") and reader.dtype(scores) in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _check_logits(logits: ir.Value) -> None:
    """Logits may be anything, but not scores that were changed on the way to the choice: that is a router which the
    operator does not know."""
    pending = [(logits, 0)]
    while pending:
        value, steps = pending.pop()
        node = value.producer()
        if node is None or not is_standard(node) or steps > _HOW_NEAR:
            continue
        if node.op_type in _SCORES:
            if value is logits:
                refuse(node, "is not a scoring function of the operator")
            refuse(logits.producer(), f"stands between {said(node)} and the choice of experts, and is not understood there")
        if node.op_type in _NEAR_SCORES:
            pending.extend((operand, steps + 1) for operand in node.inputs if operand is not None)


def _bias_vector(reader: Reader, bias: ir.Value, experts: int, ids: ir.Value) -> ir.Value:
    """`bias` as a value of shape [experts]: what it is a view of, or else a new constant that is in no graph yet."""
    roots = reader.roots(bias)
    for value in roots:
        if reader.columns(value) == experts and len(reader.shapes.shape(value)) == 1:
            return value
    tensor = _constant_tensor(roots[-1])
    if tensor is None or reader.columns(bias) != experts or math.prod(tensor.shape) != experts:
        raise Refusal(f"the bias {bias.name!r} of the selection is not one vector with an element for each expert")
    return _flat_constant(tensor, f"{ids.name}.selection_bias")


def _constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    content = value.producer().attributes.get("value") if is_output_of(value, "Constant") else None
    return initializer_tensor(value) if content is None else content.value


def _flat_constant(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    shape = ir.Shape([math.prod(tensor.shape)])
    if isinstance(tensor, ir.ExternalTensor):
        flat = ir.ExternalTensor(
            tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=shape, name=name, base_dir=tensor.base_dir
        )
    else:
        flat = ir.Tensor(tensor.numpy().reshape(-1), dtype=tensor.dtype, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=flat)


# ---- weights


def _before_rounding(reader: Reader, weights: ir.Value) -> ir.Value:
    """The last steps may round the weights to 16 bits for the experts: that stays outside of the operator."""
    root = reader.root(weights)
    node = root.producer()
    if is_output_of(root, "Cast") and ir.DataType(attribute(node, "to", 0)) in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        if reader.dtype(node.inputs[0]) == ir.DataType.FLOAT:
            return node.inputs[0]
    return weights


def _read_weights(reader: Reader, weights: ir.Value, top: TopK, selection: _Selection) -> _Weights:
    scale, weights = _read_scale(reader, weights)
    divided, inverted = _read_division(reader, weights)
    epsilon, minimum = 0.0, 0.0
    if divided is not None:
        weights, total, node = divided
        epsilon, minimum = _read_sum(reader, total, weights, node)
        weights = reader.root(weights)
    function, chosen = _read_function(reader, weights)
    masked = _is_masked(reader, chosen, top, selection)
    return _Weights(function, divided is not None, epsilon, minimum, inverted, masked, scale)


def _read_scale(reader: Reader, weights: ir.Value) -> tuple[float, ir.Value]:
    """A constant factor at the end. Division by a power of two is the same, exactly."""
    node = weights.producer()
    rank = reader.shapes.rank(weights) or 1
    if is_output_of(weights, "Mul"):
        for factor, other in pairs(node):
            scale = reader.number(factor, rank)
            if scale is not None:
                reader.need_float(node, other)
                return _finite(node, scale), reader.root(other)
    if is_output_of(weights, "Div"):
        divisor = reader.number(node.inputs[1], rank)
        if divisor is not None:
            reader.need_float(node, node.inputs[0])
            if not is_power_of_two(divisor):
                refuse(node, f"divides the weights by {divisor}: as a factor, its inverse would be rounded")
            return 1 / divisor, reader.root(node.inputs[0])
    return 1.0, weights


def _finite(node: ir.Node, scale: float) -> float:
    if not math.isfinite(scale):
        refuse(node, f"multiplies the weights by {scale}")
    return scale


def _read_division(reader: Reader, weights: ir.Value) -> tuple[tuple[ir.Value, ir.Value, ir.Node] | None, bool]:
    """(what is divided, by what, the node), if the weights are a quotient, and whether it is a product with an inverse."""
    node = weights.producer()
    if is_output_of(weights, "Div"):
        return (node.inputs[0], node.inputs[1], node), False
    if is_output_of(weights, "Mul"):
        for inverse, other in pairs(node):
            reciprocal = reader.root_node(inverse, "Reciprocal")
            if reciprocal is not None:
                return (other, reciprocal.inputs[0], node), True
    return None, False


def _read_sum(reader: Reader, total: ir.Value, weights: ir.Value, node: ir.Node) -> tuple[float, float]:
    """(epsilon, minimum) of ``max(sum(weights), minimum) + epsilon``.

    Raises:
        Refusal: `total` is something else.
    """
    reader.need_float(node, weights)
    if not reader.same_rows(weights, total) or reader.columns(total) != 1:
        refuse(node, "divides by something that is not proved to be one number for each token")
    epsilon, total = _read_epsilon(reader, total)
    minimum, total = _read_minimum(reader, total)
    found = reader.reduced_keeping(reader.root(total), _SUMS)
    if found is None or reader.root(found[1]) is not reader.root(weights) or not reader.same_rows(found[1], weights):
        refuse(node, "divides by something that is not the sum of the chosen weights")
    return epsilon, minimum


def _read_epsilon(reader: Reader, total: ir.Value) -> tuple[float, ir.Value]:
    root = reader.root(total)
    if is_output_of(root, "Add"):
        for constant, other in pairs(root.producer()):
            epsilon = reader.number(constant)
            if epsilon is not None:
                if not 0 <= epsilon < math.inf:
                    refuse(root.producer(), f"adds {epsilon} to the sum of the weights")
                return epsilon, other
    return 0.0, total


def _read_minimum(reader: Reader, total: ir.Value) -> tuple[float, ir.Value]:
    root = reader.root(total)
    node = root.producer()
    if is_output_of(root, "Clip"):
        low, high = ((_bound(reader, node, i, name)) for i, name in ((1, "min"), (2, "max")))
        if high is not None or low is None or not 0 <= low < math.inf:
            refuse(node, "bounds the sum of the weights by something else than one constant from below")
        return low, node.inputs[0]
    if is_output_of(root, "Max") and len(node.inputs) == 2:
        for constant, other in pairs(node):
            low = reader.number(constant)
            if low is not None and 0 <= low < math.inf:
                return low, other
    return 0.0, total


def _bound(reader: Reader, clip: ir.Node, place: int, name: str) -> float | None:
    """A bound of Clip: an attribute up to opset 10, an input since then. NaN: it is not constant."""
    if len(clip.inputs) > place and clip.inputs[place] is not None:
        found = reader.number(clip.inputs[place])
        return math.nan if found is None else found
    return attribute(clip, name, None)


def _read_function(reader: Reader, weights: ir.Value) -> tuple[str, ir.Value]:
    """What is applied to the chosen scores, and these."""
    if is_output_of(weights, "Softmax"):
        return "softmax", reader.root(reader.softmax_of(weights.producer()))
    inner = reader.sigmoid_of(weights)
    return ("none", weights) if inner is None else ("sigmoid", reader.root(inner))


def _is_masked(reader: Reader, chosen: ir.Value, top: TopK, selection: _Selection) -> bool:
    """`chosen` must be the scores, without the bias, at the chosen ids; whether they are scores after masking.

    Raises:
        Refusal: it is something else.
    """
    node = chosen.producer()
    if chosen is top.values:
        return _is_masked_table(selection.masked, top.node, selection, top)
    if is_output_of(chosen, "GatherElements"):
        table, indices = node.inputs
        if reader.root(indices) is not top.indices or not reader.same_rows(table, indices):
            refuse(node, "takes the weights of other experts than the chosen ones")
        if not reader.is_last_axis(attribute(node, "axis", 0), table):
            refuse(node, "does not take the weights along the axis of the experts")
        return _is_masked_table(reader.root(table), node, selection, top)
    if node is None:
        raise Refusal(f"the routing weights {chosen.name!r} do not come from the scores of the chosen experts")
    refuse(node, f"is not understood on the way from {said(top.node)} to the routing weights")


def _is_masked_table(table: ir.Value, node: ir.Node, selection: _Selection, top: TopK) -> bool:
    """Of `table`, what `node` takes the weights from."""
    if table is selection.scores:
        return False
    if table not in (selection.table, selection.masked):
        refuse(node, "takes the weights from other scores than those that the experts are chosen by")
    if selection.bias is not None:
        refuse(node, "takes weights with the bias of the selection in them; the operator's are without it")
    if selection.groups is not None:
        _check_masked_weights(node, selection, top)
    return selection.groups is not None


def _check_masked_weights(node: ir.Node, selection: _Selection, top: TopK) -> None:
    """Weights of masked scores (DeepSeek-V2): that of an expert outside of the chosen groups would be the mask's 0, where
    the operator's is its score. But scores are not negative: as long as the groups have k experts, such a one is chosen
    only in place of an expert whose score is 0 too. So the operator is told to mask with -inf, and chooses the latter:
    another id, with the weight 0 in both cases."""
    groups = selection.groups
    if top.k > groups.top * groups.size or selection.score == "none":
        refuse(node, "takes weights from masked scores, of which more may be chosen than there are in the chosen groups")


# ---- the spec


def _spec(top: TopK, selection: _Selection, steps: _Weights) -> RouterSpec:
    spec = {"k": top.k, "score": selection.score, "weight_function": steps.function, "scale": steps.scale}
    if steps.normalize:
        spec |= {"normalize": True, "normalize_epsilon": steps.epsilon, "normalize_min": steps.minimum}
    groups = selection.groups
    if groups is not None:
        spec |= {
            "num_groups": groups.count,
            "top_groups": groups.top,
            "group_score": groups.score,
            "masked_score": -math.inf if steps.masked else groups.masked_score,
        }
    return RouterSpec(**spec)


def _check_spec(spec: RouterSpec, steps: _Weights, top: TopK, *, never_negative: bool) -> None:
    """What single steps cannot see.

    Raises:
        Refusal: the steps together are not what the operator computes.
    """
    if spec.normalize and spec.score == "none" and spec.weight_function == "none" and not never_negative:
        refuse(top.node, "chooses logits that are divided by their sum, which may be negative: the operator's sum is not")
    if steps.inverted and max(spec.normalize_epsilon, spec.normalize_min) < _SMALLEST_INVERTIBLE:
        plain = spec.score == "softmax" and spec.num_groups == 1 and spec.weight_function == "none"
        if not (plain or spec.weight_function == "softmax"):
            refuse(top.node, "chooses weights that are multiplied by the inverse of their sum, which may overflow")
