"""Makes the tables of angles that the operator takes from those that the graph computes."""

from __future__ import annotations

import onnx_ir as ir

from .attention_rotary import Angles


class NewNodes:
    """Nodes that several layers share, each made once; those that `graph` holds already are not made again."""

    def __init__(self, graph: ir.Graph) -> None:
        self._made = {(node.op_type, node.name): node for node in graph if _is_made_here(node)}

    def node(
        self, operator: str, name: str, inputs: list[ir.Value], *, like: ir.Value | None = None, **attributes
    ) -> ir.Node:
        """The node called `name`, with one output of that name and the type of `like`."""
        if (operator, name) not in self._made:
            output = ir.Value(name=name, type=None if like is None else like.type)
            converted = ir.convenience.convert_attributes(attributes)
            self._made[operator, name] = ir.Node("", operator, inputs, converted, outputs=[output], name=name)
        return self._made[operator, name]

    def integers(self, *items: int) -> ir.Node:
        """A constant vector."""
        name = "ort_hina.integers." + "_".join(str(item).replace("-", "minus") for item in items)
        return self.node("Constant", name, [], value=ir.tensor(list(items), dtype=ir.DataType.INT64))


def _is_made_here(node: ir.Node) -> bool:
    return node.name is not None and len(node.outputs) == 1 and node.outputs[0].name == node.name


def angle_table(angles: Angles, rank: int, nodes: NewNodes) -> tuple[ir.Value, list[ir.Node]]:
    """(B or 1, S, count): `angles`, of which the graph computes `rank` axes, without an axis for heads and without what
    repeats; and the nodes that make it, in order."""
    value, made = angles.value, []
    if rank == 4:  # a Reshape, whose form is the same in every opset
        sizes = nodes.integers(0, -1, angles.count * (2 if angles.twice else 1))
        made += [sizes, nodes.node("Reshape", f"{value.name}.tokens", [value, sizes.outputs[0]], like=value)]
        value = made[-1].outputs[0]
    if angles.twice:
        bounds = [nodes.integers(number) for number in (0, angles.count, -1)]
        inputs = [value, *(bound.outputs[0] for bound in bounds)]
        made += [*bounds, nodes.node("Slice", f"{value.name}.half", inputs, like=value)]
        value = made[-1].outputs[0]
    return value, made
