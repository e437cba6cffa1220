"""One walk over a graph that gives values their meanings (see `meanings`), rule by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from . import dtypes
from .constants import is_standard
from .meanings import Meaning, PartialSum, Refusal, Routing
from .shapes import Shapes

Rule = Callable[["Recogniser", ir.Node], "Meaning | tuple[Meaning | None, ...] | None"]
"""Looks at a node: returns the meaning of its first output (or a tuple: of each), or None where the rule does not
apply; raises `Refusal` where it applies and finds something that no mixture of experts has."""

# They look at a value without being part of what it means: they compute shapes.
_ONLOOKERS = frozenset({"Shape", "Size", "Slice"})


class Recogniser:
    """The state of one walk. Rules read meanings and shapes from it."""

    def __init__(self, rule_tables: Iterable[Mapping[str, list[Rule]]]) -> None:
        self.shapes = Shapes()
        self.routings: list[Routing] = []
        self._meanings: dict[ir.Value, Meaning] = {}
        self._dtypes: dict[ir.Value, ir.DataType | None] = {}
        self._rules: dict[str, list[Rule]] = {}
        for table in rule_tables:
            for operator, rules in table.items():
                self._rules.setdefault(operator, []).extend(rules)

    def meaning(self, value: ir.Value | None) -> Meaning | None:
        return None if value is None else self._meanings.get(value)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        if value not in self._dtypes:
            self._dtypes[value] = dtypes.dtype(value)
        return self._dtypes[value]

    def walk(self, nodes: Iterable[ir.Node]) -> None:
        """Visits `nodes`, which must be in topological order."""
        for node in nodes:
            if node.op_type == "TopK" or any(operand in self._meanings for operand in node.inputs):
                self._visit(node)

    def give(self, value: ir.Value, meaning: Meaning) -> None:
        self._meanings[value] = meaning
        meaning.routing.values.add(value)
        self.shapes.learn(value, tuple(axis.size for axis in meaning.axes))
        if isinstance(meaning, PartialSum):
            meaning.routing.sums.append((value, meaning))

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
            if meaning is not None:
                meaning.routing.obstacles.append((node, reason))
                return
