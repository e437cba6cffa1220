"""The (token, slot) pairs sorted by expert, each expert's share a range of them: the dispatch of ``grouped_mm`` in
transformers 5, as its exporter lowers it (sort by TopK, histogram, running sum, one product for each expert, and back)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .axes import atoms, joined
from .constant_views import slice_cuts, split_sizes
from .constants import attribute, scalar, small_constant
from .dims import ONE, Dim
from .fills import fill_of
from .meanings import (
    Axis,
    Contribution,
    Counts,
    Every,
    Expert,
    ExpertPlaces,
    Ids,
    Linear,
    Meaning,
    PairPlaces,
    Pairs,
    PlaceIndex,
    Refusal,
    Routing,
    Rows,
    SeparateExperts,
    Sorted,
    SortedRange,
    Tokens,
)
from .recogniser import Recogniser


def sort(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning | None, ...] | None:
    """TopK of all flat ids, the smallest first: an order in which every expert's pairs are neighbours."""
    ids = recogniser.meaning(node.inputs[0])
    if isinstance(ids, PlaceIndex) and ids.what == "pair" and _sorts_all(recogniser, node, ids.axes):
        return None, PairPlaces(ids.routing, (_pair_axis(ids.routing),), ids.whole)  # the inverse of a permutation
    if not isinstance(ids, Ids):
        return None
    routing = ids.routing
    routing.dispatch = routing.dispatch or node
    if not _sorts_all(recogniser, node, ids.axes):
        raise Refusal("expert ids are sorted in another way than all of them, the smallest first")
    whole = Sorted(routing, node)
    routing.sorts.append(node)
    axes = (Axis("place", ids.axes[0].size),)
    return PlaceIndex(routing, axes, whole, "expert"), PlaceIndex(routing, axes, whole, "pair")


def _sorts_all(recogniser: Recogniser, node: ir.Node, axes: Sequence[Axis]) -> bool:
    ascending = not attribute(node, "largest", 1) and attribute(node, "sorted", 1)
    return bool(ascending) and len(axes) == 1 and recogniser.shapes.is_dim(node.inputs[1], axes[0].size)


def _pair_axis(routing: Routing) -> Axis:
    return joined((Axis("token", routing.tokens), Axis("slot", Dim(routing.k))))


# ---- integers of a place


def divide_place(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """A pair's number divided by k is its token; an expert's number, divided, is on its way through a histogram."""
    index = recogniser.meaning(node.inputs[0])
    if not isinstance(index, PlaceIndex):
        return None
    if index.what == "pair" and recogniser.shapes.is_dim(node.inputs[1], Dim(index.routing.k)):
        return dataclasses.replace(index, what="token")
    divisor = scalar(node.inputs[1])
    if index.what == "pair" and divisor == index.routing.k:
        return dataclasses.replace(index, what="token and rest")  # a division of floats
    if index.what == "expert" and divisor:
        return dataclasses.replace(index, what="binned", divisor=float(divisor))
    raise Refusal(f"the numbers of sorted pairs are divided by something that is not k ({index.routing.k})")


def remainder_of_place(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    index = recogniser.meaning(node.inputs[0])
    if (
        isinstance(index, PlaceIndex)
        and index.what == "pair"
        and recogniser.shapes.is_dim(node.inputs[1], Dim(index.routing.k))
    ):
        return dataclasses.replace(index, what="slot")
    return None


def below_zero(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """No number of a place is negative: floor division as PyTorch spells it asks for that."""
    index = recogniser.meaning(node.inputs[0])
    bound = scalar(node.inputs[1])
    if isinstance(index, PlaceIndex) and bound is not None and bound <= 0:
        return dataclasses.replace(index, what="zero")
    return None


def zero_is_true(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand, other in (node.inputs, node.inputs[::-1]):
        index = recogniser.meaning(operand)
        if isinstance(index, PlaceIndex) and index.what == "zero" and scalar(other):
            return index
    return None


def zero_and(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand in node.inputs:
        index = recogniser.meaning(operand)
        if isinstance(index, PlaceIndex) and index.what == "zero":
            return index
    return None


def plus_zero(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    index, other = (recogniser.meaning(operand) for operand in node.inputs)
    both = isinstance(index, PlaceIndex) and isinstance(other, PlaceIndex)
    return index if both and other.what == "zero" and index.axes == other.axes else None


def cast_place(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The experts' numbers go through a histogram as floats; other numbers stay integers (`views.cast`)."""
    index = recogniser.meaning(node.inputs[0])
    if not isinstance(index, PlaceIndex):
        return None
    target = ir.DataType(attribute(node, "to", 0))
    if index.what in ("expert", "pair") and target in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return index
    if index.what == "token" and target in (ir.DataType.INT32, ir.DataType.INT64):
        return index
    if index.what == "binned" and target in (ir.DataType.INT32, ir.DataType.INT64):
        return dataclasses.replace(index, what="truncated")
    if index.what == "slot" and target == ir.DataType.BOOL:
        return dataclasses.replace(index, what="flag")
    return None


def truncate_place(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Truncation as PyTorch spells it: floor(abs(x)) * sign(x)."""
    index = recogniser.meaning(node.inputs[0])
    if not isinstance(index, PlaceIndex) or index.what != "token and rest":
        return None
    return dataclasses.replace(index, what={"Abs": "token and rest", "Floor": "token", "Sign": "sign"}[node.op_type])


def times_sign(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    for operand, other in (node.inputs, node.inputs[::-1]):
        index, sign = recogniser.meaning(operand), recogniser.meaning(other)
        if isinstance(index, PlaceIndex) and isinstance(sign, PlaceIndex) and (index.what, sign.what) == ("token", "sign"):
            return index if index.whole == sign.whole else None
    return None


def clip_place(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Bins of a histogram over [0, E - 1]: one for each expert, if the division does what it should."""
    index = recogniser.meaning(node.inputs[0])
    if not isinstance(index, PlaceIndex):
        return None
    low, high = (scalar(node.inputs[place]) if len(node.inputs) > place else None for place in (1, 2))
    count = index.routing.num_experts
    if index.what not in ("truncated", "expert") or low != 0 or high is None or (count or high + 1) != high + 1:
        raise Refusal("the numbers of experts are clipped to a range that is not theirs")
    experts = np.arange(high + 1)
    if index.what == "truncated":
        bins = np.clip(np.trunc(experts.astype(np.float32) / np.float32(index.divisor)), 0, high)
        if (bins != experts).any():
            raise Refusal("the histogram of experts has a bin that is not one expert's")
    return dataclasses.replace(index, what="expert", divisor=1.0)


# ---- counting


def histogram(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Ones added up by expert."""
    index = recogniser.meaning(node.inputs[1])
    if not isinstance(index, PlaceIndex) or index.what != "expert":
        return None
    base = recogniser.shapes.shape(node.inputs[0])
    ones, zeros = fill_of(node.inputs[2]), fill_of(node.inputs[0])
    if attribute(node, "reduction", "none") != "add" or ones != 1 or zeros != 0 or base is None or len(base) != 1:
        raise Refusal("experts are not counted by adding ones to zeros")
    experts = base[0].constant
    if experts is None or index.routing.num_experts not in (None, experts):
        raise Refusal(f"{experts} experts are counted, and the router chooses from {index.routing.num_experts}")
    index.routing.num_experts = experts
    return Counts(index.routing, (Axis("expert", Dim(experts)),))


def running_sum(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    counts = recogniser.meaning(node.inputs[0])
    if not isinstance(counts, Counts) or counts.end is not None:
        return None
    if (
        counts.summed
        or attribute(node, "exclusive", 0)
        or attribute(node, "reverse", 0)
        or scalar(node.inputs[1]) not in (0, -1)
    ):
        raise Refusal("the counts of experts are summed in another way than from the first to each")
    return dataclasses.replace(counts, summed=True)


def each_count(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning, ...] | None:
    counts = recogniser.meaning(node.inputs[0])
    if not isinstance(counts, Counts) or counts.end is not None:
        return None
    experts = counts.axes[0].size.constant
    if split_sizes(node, experts) != [1] * experts:
        raise Refusal("the counts of experts are not taken apart one by one")
    return tuple(_count_of(counts, expert, (Axis("one", ONE),)) for expert in range(experts))


def one_count(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    counts = recogniser.meaning(node.inputs[0])
    if not isinstance(counts, Counts):
        return None
    if node.op_type == "Slice":
        cuts = slice_cuts(node, [axis.size.constant for axis in counts.axes])
        chosen = None if cuts is None or len(cuts) != 1 else next(iter(cuts.values()))
        if counts.end is not None or chosen is None or len(chosen) != 1:
            raise Refusal("the counts of experts are not taken one at a time")
        return _count_of(counts, chosen.start, (Axis("one", ONE),))
    index = small_constant(node.inputs[1])
    if index is None or index.size != 1:
        return None
    axes = (Axis("one", ONE),) * index.ndim
    if counts.end is not None:
        return dataclasses.replace(counts, axes=axes)
    return _count_of(counts, int(index.item()) % counts.axes[0].size.constant, axes)


def _count_of(counts: Counts, expert: int, axes: tuple[Axis, ...]) -> Counts:
    return Counts(counts.routing, axes, first=0 if counts.summed else expert, end=expert + 1)


def add_counts(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The counts of neighbours added up."""
    left, right = (recogniser.meaning(operand) for operand in node.inputs)
    if not isinstance(left, Counts) or not isinstance(right, Counts) or left.routing is not right.routing:
        return None
    for before, after in ((left, right), (right, left)):
        if None not in (before.end, after.end) and before.end == after.first:
            return dataclasses.replace(before, end=after.end)
    return None


def list_counts(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Single counts put side by side again."""
    counts = [recogniser.meaning(operand) for operand in node.inputs]
    if not all(isinstance(count, Counts) and count.end is not None for count in counts):
        return None
    if [(count.first, count.end) for count in counts] != [(expert, expert + 1) for expert in range(len(counts))]:
        return None
    return Counts(counts[0].routing, (Axis("expert", Dim(len(counts))),))


def places_of_expert(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """From where the experts before it end to where it ends."""
    end = recogniser.meaning(node.inputs[1])
    if not isinstance(end, Counts):
        return None
    if scalar(node.inputs[2]) != 1:
        raise Refusal("not every place in the range of an expert is taken")
    whole = _sorted_by(recogniser, end.routing)
    selection = SortedRange(whole, _expert_between(recogniser, node.inputs[0], end))
    return ExpertPlaces(end.routing, (_range_axis(recogniser, selection),), selection)


def _sorted_by(recogniser: Recogniser, routing: Routing) -> Sorted:
    if len(routing.sorts) != 1:
        raise Refusal("the pairs are not sorted by expert exactly once")
    return Sorted(routing, routing.sorts[0])


def _expert_between(recogniser: Recogniser, begin: ir.Value, end: Counts) -> int:
    """The expert whose range goes from `begin` to `end`."""
    start = recogniser.meaning(begin)
    expert = (end.end or 0) - 1
    first = expert == 0 and scalar(begin) == 0
    follows = isinstance(start, Counts) and (start.routing, start.first, start.end) == (end.routing, 0, expert)
    if end.first != 0 or end.end is None or not (first or follows):
        raise Refusal("the range of an expert does not begin where that of the expert before it ends")
    end.routing.experts_seen.add(expert)
    return expert


def _range_axis(recogniser: Recogniser, selection: SortedRange) -> Axis:
    return Axis("pick", recogniser.shapes.dims.unknown(selection))


def slice_range(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """One expert's rows, cut out of all."""
    rows = recogniser.meaning(node.inputs[0])
    end = recogniser.meaning(node.inputs[2])
    if not isinstance(rows, Rows) or not isinstance(end, Counts):
        return None
    axes = small_constant(node.inputs[3]) if len(node.inputs) > 3 else np.zeros(1, int)
    steps = small_constant(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1, int)
    if axes is None or list(axes) != [0] or steps is None or list(steps) != [1] or not isinstance(rows.selection, Sorted):
        raise Refusal("an expert's rows are not cut out of the sorted rows")
    return _in_range(recogniser, rows, _expert_between(recogniser, node.inputs[1], end))


def _in_range(recogniser: Recogniser, rows: Rows, expert: int) -> Rows:
    selection = SortedRange(rows.selection, expert)
    return dataclasses.replace(rows, selection=selection, axes=(_range_axis(recogniser, selection), *rows.axes[1:]))


def split_ranges(recogniser: Recogniser, node: ir.Node) -> tuple[Meaning, ...] | None:
    """All experts' rows, cut at their counts."""
    rows = recogniser.meaning(node.inputs[0])
    counts = recogniser.meaning(node.inputs[1]) if len(node.inputs) > 1 else None
    if not isinstance(rows, Rows) or not isinstance(counts, Counts):
        return None
    experts = counts.axes[0].size.constant
    whole = (
        counts.end is None and not counts.summed and isinstance(rows.selection, Sorted) and counts.routing is rows.routing
    )
    if not whole or attribute(node, "axis", 0) != 0 or len(node.outputs) != experts:
        raise Refusal("sorted rows are not cut into the ranges of their experts")
    counts.routing.experts_seen.update(range(experts))
    return tuple(_in_range(recogniser, rows, expert) for expert in range(experts))


# ---- rows of places


def gather_at_places(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Rows of tokens, or routing weights, for each place; or one expert's rows out of all."""
    index = recogniser.meaning(node.inputs[1])
    if not isinstance(index, PlaceIndex | ExpertPlaces | PairPlaces):
        return None
    places = index.axes
    if node.op_type == "GatherND":
        if attribute(node, "batch_dims", 0) or len(places) != 2 or places[1].size != ONE:
            return None
        places = places[:1]
    elif attribute(node, "axis", 0) != 0:
        raise Refusal("sorted pairs are gathered along an axis that is not the first")
    if isinstance(index, ExpertPlaces):
        return _range_of(recogniser, node.inputs[0], index, places)
    if isinstance(index, PairPlaces):
        return _unsorted(recogniser, node.inputs[0], index, places)
    return _sorted(recogniser, node.inputs[0], index, places)


def _sorted(recogniser: Recogniser, data: ir.Value, index: PlaceIndex, places: tuple[Axis, ...]) -> Meaning | None:
    routing = index.routing
    if index.what == "token":
        rows = recogniser.rows(data)
        if rows is None or not isinstance(rows.selection, Every) or not isinstance(rows.form, Tokens):
            raise Refusal(f"tokens are gathered from {data.name!r}, which is not proved to be [tokens, features]")
        if [axis.role for axis in rows.axes] != ["token", "feature"]:
            raise Refusal(f"tokens are gathered from {data.name!r} along an axis that is not its tokens'")
        return Rows(routing, (*places, rows.axes[1]), index.whole, rows.source, Tokens(), rows.dtype)
    if index.what != "pair":
        return None
    ids = recogniser.meaning(data)
    if isinstance(ids, Ids) and ids.routing is routing and len(ids.axes) == 1:
        return dataclasses.replace(index, axes=places, what="expert")
    weights = recogniser.routing_weights(data, routing)
    if weights is None or len(weights.axes) != 1 or not isinstance(weights.selection, Pairs):
        raise Refusal(f"{data.name!r}, gathered for the sorted pairs, is not proved to be the flat routing weights")
    return dataclasses.replace(weights, axes=places, selection=index.whole)


def _range_of(recogniser: Recogniser, data: ir.Value, index: ExpertPlaces, places: tuple[Axis, ...]) -> Meaning | None:
    rows = recogniser.meaning(data)
    if not isinstance(rows, Rows) or rows.selection != index.selection.whole or rows.axes[0].role != "place":
        raise Refusal("an expert's rows are taken from something else than the sorted rows")
    return dataclasses.replace(rows, selection=index.selection, axes=(*places, *rows.axes[1:]))


def _unsorted(recogniser: Recogniser, data: ir.Value, index: PairPlaces, places: tuple[Axis, ...]) -> Meaning | None:
    outputs = recogniser.meaning(data)
    if not isinstance(outputs, Contribution | Rows) or outputs.selection != index.whole or outputs.axes[0].role != "place":
        raise Refusal("what is put back into the order of the pairs was not sorted by the same order")
    return dataclasses.replace(outputs, selection=Pairs(index.routing), axes=(*places, *outputs.axes[1:]))


def join_ranges(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """The products of all experts' ranges, one after the other: a product with the stack of their matrices."""
    parts = [recogniser.meaning(operand) for operand in node.inputs]
    first = parts[0]
    if not isinstance(first, Rows) or not isinstance(first.selection, SortedRange) or attribute(node, "axis", 0) != 0:
        return None
    whole = first.selection.whole
    expected = [SortedRange(whole, expert) for expert in range(whole.routing.num_experts or 0)]
    if [part.selection if isinstance(part, Rows) else None for part in parts] != expected:
        raise Refusal("the ranges that are joined are not those of all experts in order")
    axes = (Axis("place", _place_size(whole)), *first.axes[1:])
    return dataclasses.replace(first, selection=whole, axes=axes, form=_joined_forms([part.form for part in parts]))


def _joined_forms(forms: list) -> Linear | Expert:
    if all(isinstance(form, Linear) for form in forms):
        return _stack(forms)
    if not all(isinstance(form, Expert) for form in forms):
        raise Refusal("the experts' ranges are not computed alike")
    first = forms[0]
    if all((form.gate, form.up, form.activation) == (first.gate, first.up, first.activation) for form in forms):
        return dataclasses.replace(first, down=_stack([form.down for form in forms]))
    return SeparateExperts(first.activation, first.gate, first.up, first.down, tuple(forms))


def _place_size(whole: Sorted) -> Dim:
    return _pair_axis(whole.routing).size


def _stack(linears: list[Linear]) -> Linear:
    """One stack of matrices that lie at equal distances."""
    if any((linear.bias is None) != (linears[0].bias is None) for linear in linears):
        raise Refusal("some experts have a bias, and others have none")
    matrix = _evenly_spaced([linear.matrix for linear in linears])
    bias = None if linears[0].bias is None else _evenly_spaced([linear.bias for linear in linears])
    return Linear(matrix, bias)


def _evenly_spaced(parts: list):
    distance = parts[1].offset - parts[0].offset if len(parts) > 1 else 0
    for number, part in enumerate(parts):
        if part != dataclasses.replace(parts[0], offset=parts[0].offset + number * distance):
            raise Refusal("the experts' matrices do not lie at equal distances in one stack")
    return dataclasses.replace(parts[0], experts=len(parts), expert_stride=distance)


# ---- and back


def scatter_back(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """Every place's row written (or added to zeros) at its pair: the order of the pairs again."""
    rows, index = recogniser.meaning(node.inputs[2]), recogniser.meaning(node.inputs[1])
    if not isinstance(rows, Rows | Contribution) or not isinstance(index, PlaceIndex) or index.what != "pair":
        return None
    base = recogniser.shapes.shape(node.inputs[0])
    reduction = attribute(node, "reduction", "none")
    if rows.selection != index.whole or base is None or not recogniser.shapes.dims.same(base[0], _place_size(index.whole)):
        raise Refusal("sorted rows are not put back to the pairs that they were sorted from")
    if reduction != "none" and not (reduction == "add" and fill_of(node.inputs[0]) == 0):
        raise Refusal(f"sorted rows are put back with reduction {reduction!r} into something that is not zeros")
    return dataclasses.replace(rows, selection=Pairs(index.routing), axes=(_pair_axis(index.routing), *rows.axes[1:]))


def invert(recogniser: Recogniser, node: ir.Node) -> Meaning | None:
    """0, 1, 2, … written to the places' pair numbers: for each pair its place. Every pair is written, so what was there
    before does not matter."""
    index = recogniser.meaning(node.inputs[1])
    if not isinstance(index, PlaceIndex) or index.what != "pair" or attribute(node, "reduction", "none") != "none":
        return None
    counting = node.inputs[2].producer()
    size = _place_size(index.whole)
    if counting is None or counting.op_type != "Range" or scalar(counting.inputs[0]) != 0 or scalar(counting.inputs[2]) != 1:
        raise Refusal("what is written to the sorted pairs is not 0, 1, 2, …")
    base = recogniser.shapes.shape(node.inputs[0])
    if not recogniser.shapes.is_dim(counting.inputs[1], size) or base is None or len(base) != 1:
        raise Refusal("what is written to the sorted pairs is not proved to be one number for each")
    if not recogniser.shapes.dims.same(base[0], size) or len(atoms(index.axes)) != 1:
        raise Refusal("the places of the pairs are written into something of another size")
    return PairPlaces(index.routing, (_pair_axis(index.routing),), index.whole)


RULES = {
    "TopK": [sort],
    "Div": [divide_place],
    "Mod": [remainder_of_place],
    "Less": [below_zero],
    "Equal": [zero_is_true],
    "And": [zero_and],
    "Sub": [plus_zero],
    "Add": [plus_zero, add_counts],
    "Abs": [truncate_place],
    "Floor": [truncate_place],
    "Sign": [truncate_place],
    "Mul": [times_sign],
    "Cast": [cast_place],
    "Clip": [clip_place],
    "ScatterElements": [histogram, invert],
    "CumSum": [running_sum],
    "Split": [each_count, split_ranges],
    "Slice": [one_count, slice_range],
    "Range": [places_of_expert],
    "Gather": [one_count, gather_at_places],
    "GatherND": [gather_at_places],
    "Concat": [list_counts, join_ranges],
    "ScatterND": [invert, scatter_back],
}
