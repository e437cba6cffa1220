"""Routers that choose among the experts of the best groups only (DeepSeek-V2 and V3, GLM-4.5, dots.llm1).

groups   = TopK(score of each group, top_groups)          score: the largest of the group, or the sum of its two best
mask     = 1 for the experts of these groups, 0 elsewhere  ScatterElements of ones into zeros, spread over the experts
selected = Where(mask, selection values, 0 or -inf)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import onnx_ir as ir

from .constants import attribute, is_standard
from .dims import ONE
from .router_expressions import Reader, TopK, is_output_of, refuse

_SUM = frozenset({"ReduceSum"})
_LARGEST = frozenset({"ReduceMax"})
_SPREADING = frozenset({"Reshape", "Flatten", "Unsqueeze", "Squeeze", "Expand"})


@dataclass(frozen=True)
class Groups:
    """The choice of groups. `table` is what is chosen from, before experts of other groups are masked."""

    table: ir.Value
    count: int
    top: int
    size: int
    score: str
    masked_score: float

    @property
    def choose_all(self) -> bool:
        return self.top == self.count


@dataclass(frozen=True)
class _Mask:
    """1 where an expert's group was chosen, and the other way round if `inverted`. `size` is that of a group."""

    scatter: ir.Node
    inverted: bool
    size: int


def read_groups(reader: Reader, where: ir.Node) -> Groups:
    """The groups behind `where`, the Where node that a router chooses from.

    Raises:
        Refusal: it is not such a mask, and the reason.
    """
    condition, if_true, if_false = where.inputs
    mask = _read_mask(reader, where, condition)
    fill, kept = (if_true, if_false) if mask.inverted else (if_false, if_true)
    masked_score = reader.number(fill)
    if masked_score is None or (masked_score != 0 and masked_score != -math.inf):
        refuse(where, "does not give the experts of other groups the score 0 or -inf")
    table = reader.root(kept)
    if not reader.same_shape(kept, condition):
        refuse(where, "masks scores of another shape than the mask has")
    chosen = _chosen_groups(reader, mask.scatter)
    score, grouped = _group_score(reader, chosen)
    count, size = _split(reader, grouped, table, chosen.node)
    if size != mask.size or reader.columns(chosen.table) != count:
        refuse(mask.scatter, f"marks groups of {mask.size} experts, and groups of {size} were compared")
    if not 1 <= chosen.k <= count or (score == "top2_sum" and size < 2):
        refuse(chosen.node, f"chooses {chosen.k} of {count} groups of {size} experts")
    return Groups(table, count, chosen.k, size, score, masked_score or 0.0)


def _read_mask(reader: Reader, where: ir.Node, condition: ir.Value) -> _Mask:
    value, inverted = _unspread(reader, where, condition, reader.columns(condition))
    scatter = value.producer()
    table, indices, updates = scatter.inputs
    filled, written = reader.fill(table), reader.fill(updates)
    if (filled, written) not in ((0.0, 1.0), (1.0, 0.0)):
        refuse(scatter, "does not write ones into zeros")
    if attribute(scatter, "reduction", "none") != "none" or not reader.is_last_axis(attribute(scatter, "axis", 0), table):
        refuse(scatter, "does not write single groups along the last axis")
    if not reader.same_rows(table, indices) or not reader.same_shape(indices, updates):
        refuse(scatter, "marks groups in a table that is not proved to have the rows of the router")
    groups, experts = reader.columns(table), reader.columns(condition)
    if not groups or not experts or experts % groups:
        refuse(scatter, "marks groups whose number does not divide that of the experts, or is not known")
    return _Mask(scatter, inverted != (filled == 1.0), experts // groups)


def _unspread(reader: Reader, where: ir.Node, value: ir.Value, experts: int | None) -> tuple[ir.Value, bool]:
    """Back from the mask of experts to the ScatterElements that marks groups; and whether it was negated an odd number of
    times. Each group's mark must have been repeated for its experts, which stand side by side."""
    inverted = False
    while not is_output_of(value, "ScatterElements"):
        node = value.producer()
        if node is None or not is_standard(node):
            refuse(where, "masks the scores by something that is not the choice of groups")
        if node.op_type == "Not" or (node.op_type == "Equal" and reader.number(node.inputs[1]) == 0):
            inverted = not inverted
        elif node.op_type in _SPREADING:
            _check_spreading(reader, node, experts)
        elif node.op_type not in ("Cast", "Identity") and not _is_positive_test(reader, node):
            refuse(node, "stands between the choice of groups and the mask, and is not understood there")
        value = node.inputs[0]
    return value, inverted


def _is_positive_test(reader: Reader, node: ir.Node) -> bool:
    return node.op_type == "Greater" and reader.number(node.inputs[1]) == 0


def _check_spreading(reader: Reader, node: ir.Node, experts: int | None) -> None:
    """Allowed are the steps of ``[…, G] -> […, G, 1] -> […, G, E / G] -> […, E]``, and changes of the axes before the
    last: all keep the order of elements, and repeat none but a group's mark."""
    before, after = reader.shapes.shape(node.inputs[0]), reader.shapes.shape(node.outputs[0])
    same = reader.shapes.dims.same
    if experts is None or not before or not after:
        refuse(node, "spreads the mask of groups over experts in a shape that could not be worked out")
    if node.op_type == "Expand":
        alike = len(before) == len(after) and all(same(a, b) for a, b in zip(before[:-1], after[:-1], strict=True))
        if not alike or not (before[-1] == ONE or same(before[-1], after[-1])):
            refuse(node, "repeats the mask of groups along another axis than that of a group's experts")
        return
    joins = len(before) > 1 and after[-1].constant == experts and _is_product(before[-2:], experts)
    opens = after[-1] == ONE and len(after) > 1 and same(after[-2], before[-1])
    if not (same(before[-1], after[-1]) or joins or opens):
        refuse(node, "reorders the mask of groups")


def _is_product(dims, expected: int) -> bool:
    left, right = (dim.constant for dim in dims)
    return left is not None and right is not None and left * right == expected


def _chosen_groups(reader: Reader, scatter: ir.Node) -> TopK:
    indices = reader.root(scatter.inputs[1])
    chosen = reader.top_k(indices)
    if chosen is None or indices is not chosen.indices:
        refuse(scatter, "marks groups that are not chosen by a TopK")
    if not reader.same_rows(scatter.inputs[1], indices):
        refuse(scatter, "marks groups of other rows than they were chosen for")
    return chosen


def _group_score(reader: Reader, chosen: TopK) -> tuple[str, ir.Value]:
    """What a group is worth, and the table [..., G, E / G] of which."""
    table = _unviewed(chosen.table)
    largest = reader.reduced(table, _LARGEST)
    if largest is not None:
        return "max", largest[1]
    summed = reader.reduced(table, _SUM)
    if summed is not None:
        reader.need_float(*summed)
    best_values = reader.root(summed[1] if summed else _only_column(reader, table, chosen))
    best = reader.top_k(best_values)
    if best is None or best.k not in ((1, 2) if summed else (1,)) or not is_output_of(best_values, "TopK"):
        _refuse_score(chosen)
    return ("max" if best.k == 1 else "top2_sum"), best.table


def _only_column(reader: Reader, table: ir.Value, chosen: TopK) -> ir.Value:
    """What `table` is, a TopK's values of one column with that axis gone."""
    node = table.producer()
    if node is None or node.op_type not in _SPREADING or reader.columns(node.inputs[0]) != 1:
        _refuse_score(chosen)
    return node.inputs[0]


def _refuse_score(chosen: TopK) -> NoReturn:
    refuse(chosen.node, "chooses groups by something that is neither their largest score nor the sum of their two best")


def _unviewed(value: ir.Value) -> ir.Value:
    while is_output_of(value, "Identity"):
        value = value.producer().inputs[0]
    return value


def _split(reader: Reader, grouped: ir.Value, table: ir.Value, chosen: ir.Node) -> tuple[int, int]:
    """How many groups `grouped` [..., G, E / G] makes of `table` [..., E], and how many experts are in each."""
    shape, experts = reader.shapes.shape(grouped), reader.columns(table)
    roots = reader.roots(grouped)
    split = roots[-1].producer()
    if table not in roots and split is not None and split.op_type in ("Reshape", "Unsqueeze"):
        roots = reader.roots(split.inputs[0])
    if table not in roots:
        refuse(chosen, "chooses groups by other scores than those that experts are chosen by")
    if shape is None or len(shape) < 2 or experts is None or not _is_product(shape[-2:], experts):
        refuse(chosen, "chooses groups whose number and size could not be worked out")
    return shape[-2].constant, shape[-1].constant
