"""Small changes to ONNX graphs that leave what they compute as it is: the noise that tools add."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Editor:
    """Inserts and replaces nodes of a model; new values get fresh names."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self._counter = 0

    def nodes(self, operator: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if node.op_type == operator]

    def producer(self, value: str) -> onnx.NodeProto:
        return next(node for node in self.graph.node if value in node.output)

    def users(self, value: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.node if value in node.input]

    def name(self) -> str:
        self._counter += 1
        return f"noise_{self._counter}"

    def constant(self, value, dtype=np.int64) -> str:
        tensor = numpy_helper.from_array(np.array(value, dtype), self.name())
        self.graph.initializer.append(tensor)
        return tensor.name

    def after(self, node: onnx.NodeProto, operator: str, *others: str, **attributes) -> None:
        """Puts ``operator(output, *others)`` between `node` and the users of its first output."""
        inner = self.name()
        added = helper.make_node(operator, [inner, *others], [node.output[0]], name=self.name(), **attributes)
        node.output[0] = inner
        self.graph.node.insert(list(self.graph.node).index(node) + 1, added)

    def replace(self, node: onnx.NodeProto, *chain: tuple[str, list[str], dict]) -> None:
        """Replaces `node` by operators in a row: (name, further inputs, attributes) each; the last has its output."""
        place = list(self.graph.node).index(node)
        value, output = node.input[0], node.output[0]
        self.graph.node.remove(node)
        for step, (operator, others, attributes) in enumerate(chain):
            target = output if step == len(chain) - 1 else self.name()
            added = helper.make_node(operator, [value, *others], [target], name=self.name(), **attributes)
            self.graph.node.insert(place + step, added)
            value = target
