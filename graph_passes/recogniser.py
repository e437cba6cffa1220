"""One walk over a graph that gives values their meanings (see `meanings`), rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from . import dtypes
from .axes import sizes
from .constant_views import ConstantView, constant_view
from .constants import is_standard
from .meanings import (
    Axis,
    Every,
    Meaning,
    Pairs,
    PartialSum,
    Refusal,
    Routing,
    RoutingWeights,
    Rows,
    Tokens,
)
from .shapes import Shapes

Rule = Callable[["Recogniser", ir.Node], "Meaning | tuple[Meaning | None, ...] | None"]
"""Looks at a node: returns the meaning of its first output (or a tuple: of each), or None where the rule does not
apply; raises `Refusal` where it applies and finds something that no mixture of experts has."""

# They look at a value without being part of what it means: they compute shapes, or belong to the router.
_ONLOOKERS = frozenset({"Shape", "Size", "Slice", "GatherElements"})

# Where meanings begin: the operators whose rules look at operands that have none yet.
_BEGINNINGS = frozenset({"TopK", "Concat", "MatMul", "Gemm", "GatherND"})

# Views: a value behind them is the same rows in another shape.
_VIEWS = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Tile", "Transpose"})


class Recogniser:
    """The state of one walk. Rules read meanings and shapes from it."""

    def __init__(self, rule_tables: Iterable[Mapping[str, list[Rule]]]) -> None:
        self.shapes = Shapes()
        self.routings: list[Routing] = []
        self.token_views: dict[ir.Value, list[ir.Value]] = {}
        """For the rows of tokens that something was computed from: all values that are those rows, in any shape."""
        self._meanings: dict[ir.Value, Meaning] = {}
        self._dtypes: dict[ir.Value, ir.DataType | None] = {}
        self._constants: dict[ir.Value, ConstantView | None] = {}
        self._rules: dict[str, list[Rule]] = {}
        for table in rule_tables:
            for operator, rules in table.items():
                self._rules.setdefault(operator, []).extend(rules)

    def meaning(self, value: ir.Value | None) -> Meaning | None:
        return None if value is None else self._meanings.get(value)

    def values(self, kind: type[Meaning]) -> list[tuple[ir.Value, Meaning]]:
        """All values whose meaning is of that kind."""
        return [(value, meaning) for value, meaning in self._meanings.items() if isinstance(meaning, kind)]

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        if value not in self._dtypes:
            self._dtypes[value] = dtypes.dtype(value)
        return self._dtypes[value]

    def constant(self, value: ir.Value | None) -> ConstantView | None:
        """`value` as a view of an initializer, if it is one."""
        return constant_view(value, self._constants)

    def rows(self, value: ir.Value | None) -> Rows | None:
        """`value` as rows of features: what it means, or else, rows of tokens that something else computed."""
        known = self.meaning(value)
        if known is not None or value is None:
            return known if isinstance(known, Rows) else None
        if value.is_initializer() or self.constant(value) is not None:
            return None
        found = self.seen_through(value, self.rows, Rows)
        return found if found is not None else self._source(value)

    def routing_weights(self, value: ir.Value | None, routing: Routing) -> RoutingWeights | None:
        """`value` as the routing weights of `routing`, if it is [tokens, k] of anything, seen through views."""
        known = self.meaning(value)
        if known is not None or value is None:
            return known if isinstance(known, RoutingWeights) else None
        # As far back as possible: of one choice for each token, many views are [tokens, 1].
        found = self.seen_through(value, lambda inner: self.routing_weights(inner, routing), RoutingWeights)
        if found is not None:
            return found
        shape = self.shapes.shape(value)
        if (
            shape is None
            or len(shape) != 2
            or shape[1].constant != routing.k
            or not self.shapes.dims.same(shape[0], routing.tokens)
        ):
            return None
        return RoutingWeights(
            routing, (Axis("token", shape[0]), Axis("slot", shape[1])), Pairs(routing), value, self.dtype(value)
        )

    def seen_through(self, value: ir.Value, look: Callable[[ir.Value], Meaning | None], kind: type) -> Meaning | None:
        """The meaning of `value` that a view gives it, where `look` finds one for what is viewed."""
        node = value.producer()
        if node is None or node.op_type not in _VIEWS or not is_standard(node):
            return None
        inner = look(node.inputs[0])
        if inner is None:
            return None
        before = self.meaning(node.inputs[0])
        self._meanings[node.inputs[0]] = inner
        try:
            found = self._apply(node)
        except Refusal:
            return None
        finally:
            if before is None and not isinstance(inner, Rows):
                del self._meanings[node.inputs[0]]
        if not isinstance(found, kind):
            return None
        if isinstance(found, Rows):
            self.give(value, found)
        return found

    def walk(self, nodes: Iterable[ir.Node]) -> None:
        """Visits `nodes`, which must be in topological order."""
        for node in nodes:
            if node.op_type in _BEGINNINGS or any(operand in self._meanings for operand in node.inputs):
                self._visit(node)

    def give(self, value: ir.Value, meaning: Meaning) -> None:
        self.shapes.agree(value, sizes(meaning.axes))
        self._meanings[value] = meaning
        if meaning.routing is not None:
            meaning.routing.values.add(value)
            if isinstance(meaning, PartialSum):
                meaning.routing.sums.append((value, meaning))
        if isinstance(meaning, Rows) and isinstance(meaning.form, Tokens) and isinstance(meaning.selection, Every):
            self.token_views.setdefault(meaning.source, []).append(value)

    def _source(self, value: ir.Value) -> Rows | None:
        shape = self.shapes.shape(value)
        if shape is None or len(shape) < 2:
            return None
        axes = (*(Axis("token", size) for size in shape[:-1]), Axis("feature", shape[-1]))
        rows = Rows(None, axes, Every(), value, Tokens(), self.dtype(value))
        self.give(value, rows)
        return rows

    def _apply(self, node: ir.Node) -> Meaning | None:
        for rule in self._rules.get(node.op_type, ()):
            found = rule(self, node)
            if found is not None:
                return found if not isinstance(found, tuple) else found[0]
        return None

    def _visit(self, node: ir.Node) -> None:
        reason = "this operator is not understood at this place"
        for rule in self._rules.get(node.op_type, ()) if is_standard(node) else ():
            try:
                found = rule(self, node)
            except Refusal as refusal:
                reason = str(refusal)
                continue
            if found is not None:
                found = found if isinstance(found, tuple) else (found,)
                for value, meaning in zip(node.outputs, found, strict=False):
                    if meaning is not None:
                        self.give(value, meaning)
                return
        if node.op_type not in _ONLOOKERS:
            self._blame(node, reason)

    def _blame(self, node: ir.Node, reason: str) -> None:
        for operand in node.inputs:
            meaning = self.meaning(operand)
            if meaning is not None and meaning.routing is not None:
                meaning.routing.obstacles.append((node, reason))
                return
