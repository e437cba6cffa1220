"""Proving what a mask lets through: ``key <= query + past``, the model's attention mask, and perhaps a window.

Only a mask that is proved to be exactly this is dropped; the operator then works out by itself which keys a query sees.
The proof is by what each element of the mask is (see `symbolic_tensors`), whatever operators build it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .constants import attribute, axes_of, is_standard, scalar
from .formulas import AtLeastZero, Condition, Formula, Seen, at_least_zero, choice, conditions, conjunction
from .polynomials import ONE, ZERO, Polynomial, number, unknown
from .symbolic_tensors import Either, Element, Index, NotUnderstood, Sizes, Tensors, as_formula

# The lowest float16: added to any score of this type or a wider one, it leaves nothing of its exponential.
HIDES = -65504.0


@dataclass(frozen=True)
class MaskProof:
    """Query i sees key j exactly if ``j <= i + past``, `attention_mask` (if there is one) is not 0 at j, and
    ``i + past - j < window`` (if there is one)."""

    attention_mask: ir.Value | None
    window: int | None
    visible: Formula
    index: Index
    """The positions that `visible` is about: (sequence, head, query, key)."""


def new_tensors(graph: ir.Graph) -> Tensors:
    """For a graph with caches. Where the width of its attention mask is said to be that of the past and of what is new, it
    is counted in totals: the past is the total without the new ones."""
    tensors = Tensors()
    shaped = [value for value in graph.inputs if value.shape is not None]
    pasts = {tensors.sizes(value)[2].name for value in shaped if len(value.shape) == 4}
    tables = [tensors.sizes(value) for value in shaped if len(value.shape) == 2]
    for size in (size for table in tables for size in table):
        tensors.at_least(size, ONE)  # of no tokens nothing is computed
    for _, width in tables:
        past = [unknown(names[0]) for names, _ in width.terms if len(names) == 1 and names[0] in pasts]
        if len(width.terms) == 2 and len(past) == 1:
            tensors.at_least(tensors.define("total", width, past[0]), width - past[0])
    return tensors


def prove(tensors: Tensors, mask: ir.Value) -> MaskProof:
    """Of a mask that is added to scores (0 where a key is seen, far below 0 or -Inf where not), or of booleans (true where a
    key is seen), with axes for sequences, heads, queries and keys.

    Raises:
        NotUnderstood: it could not be proved.
    """
    sizes = tensors.sizes(mask)
    if len(sizes) != 4:
        raise NotUnderstood(f"the mask {mask.name!r} has {len(sizes)} axes, not 4")
    index = tuple(ZERO if size == ONE else tensors.position(name, size) for name, size in zip("bhqk", sizes, strict=True))
    visible = tensors.settled(_sees(tensors.element(mask, index)))
    return _judged(tensors, visible, index, tensors.sizes(mask))


def _judged(tensors: Tensors, visible: Formula, index: Index, sizes: Sizes) -> MaskProof:
    distance = tensors.simplified(index[2] + sizes[3] - sizes[2] - index[3])
    parts = conditions(visible)
    seen = [part for part in parts if isinstance(part, Seen)]
    if any((part.row, part.column) != (index[0], index[3]) for part in seen) or len(seen) > 1:
        raise NotUnderstood("it does not read the attention mask of the sequence at the position of the key")
    window = _window(parts, distance)
    target = tensors.settled(at_least_zero(distance))
    if seen:
        target = conjunction(target, seen[0])
    if window is not None:
        target = conjunction(target, tensors.settled(at_least_zero(number(window - 1) - distance)))
    if not tensors.equivalent(visible, target):
        raise NotUnderstood("it is not causal in the way that the operator is")
    return MaskProof(seen[0].mask if seen else None, window, visible, index)


def _window(parts: set[Condition], distance: Polynomial) -> int | None:
    """Of a condition ``distance < window``, or of its opposite; ``distance >= 0`` and its opposite are none."""
    for part in parts:
        if not isinstance(part, AtLeastZero):
            continue
        inside, outside = (part.value + distance).constant, (part.value - distance).constant
        if inside is not None and inside >= 0:
            return inside + 1
        if outside is not None and outside < 0:
            return -outside
    return None


def _sees(element: Element) -> Formula:
    match element:
        case Either(condition, then, otherwise):
            return choice(condition, _sees(then), _sees(otherwise))
        case Polynomial():
            raise NotUnderstood("it adds integers to the scores")
        case float():
            if element == 0.0:
                return True
            if element <= HIDES:
                return False
            raise NotUnderstood(f"it adds {element:g} to scores")
    return element


def hides_rows_without_keys(tensors: Tensors, condition: ir.Value, proof: MaskProof) -> bool:
    """Whether `condition` is true exactly for queries that see no key: ``sum(visible) < 1`` over the keys."""
    node = condition.producer()
    if node is None or node.op_type not in ("Less", "Equal") or not is_standard(node):
        return False
    if scalar(node.inputs[1]) != (1 if node.op_type == "Less" else 0):
        return False
    total = node.inputs[0].producer()
    while total is not None and total.op_type == "Cast":  # no rounding takes a sum of 0 and 1 across 1
        total = total.inputs[0].producer()
    if total is None or total.op_type != "ReduceSum" or not attribute(total, "keepdims", 1):
        return False
    counted = total.inputs[0]
    try:
        if axes_of(total) not in ((-1,), (3,)) or len(tensors.sizes(counted)) != 4:
            return False
        index = tuple(ZERO if size == ONE else i for i, size in zip(proof.index, tensors.sizes(counted), strict=True))
        return tensors.equivalent(tensors.settled(as_formula(tensors.element(counted, index))), proof.visible)
    except NotUnderstood:
        return False
