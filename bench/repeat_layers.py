"""A deeper model out of an exported one: its last decoder layer repeated, node by node, with weights of its own.

Exporting hundreds of layers × experts takes tens of minutes and most of a machine's memory; the graph that comes out is the
same layer again and again. This makes that graph from an export of two layers.
"""

from __future__ import annotations

import re

import onnx


def repeat_last_layer(model: onnx.ModelProto, layers: int) -> onnx.ModelProto:
    """`model`, an Optimum export of a decoder (names ``/model/layers.N/…``), with as many `layers`.

    Inputs and outputs of the repeated layer (its past and present) are repeated, too. Initializers of the layer are copied
    under new names, with the same external data.

    Raises:
        ValueError: the graph has no layer that can be told by its node names, or is deeper already.
    """
    numbers = [int(found.group(1)) for node in model.graph.node if (found := _LAYER.match(node.name))]
    last = max(numbers, default=-1)
    if last < 1 or layers < last + 1:
        raise ValueError(f"expected an export of 2 to {layers} layers, got {last + 1}")
    body = [node for node in model.graph.node if _in_layer(node, last)]
    made = {name for node in body for name in node.output}
    entry, result = _entry(model, body, made), _result(model, body, made)
    own = {name for node in body for name in node.input} - _shared_initializers(model, body)
    initializers = [tensor for tensor in model.graph.initializer if tensor.name in own]
    inputs = [value for value in model.graph.input if f".{last}." in value.name]
    outputs = [value for value in model.graph.output if value.name in made]
    after = [node for node in model.graph.node if result in node.input and not _in_layer(node, last)]
    place = list(model.graph.node).index(body[-1]) + 1
    before, rest = list(model.graph.node)[:place], list(model.graph.node)[place:]
    renamed = made | {tensor.name for tensor in initializers} | {value.name for value in inputs}
    previous, copies = result, []
    for number in range(last + 1, layers):
        names = {name: _renamed(name, last, number) for name in renamed} | {entry: previous}
        copies += [_copy(node, names, last, number) for node in body]
        for group, members in (
            (model.graph.initializer, initializers),
            (model.graph.input, inputs),
            (model.graph.output, outputs),
        ):
            for member in members:
                group.add().CopyFrom(member)
                group[-1].name = names[member.name]
        previous = names[result]
    for node in after:
        node.input[:] = [previous if name == result else name for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend([*before, *copies, *rest])
    del model.graph.value_info[:]
    return model


_LAYER = re.compile(r"/model/layers\.(\d+)/")


def _in_layer(node: onnx.NodeProto, number: int) -> bool:
    found = _LAYER.match(node.name) or _LAYER.match(node.output[0])
    return found is not None and int(found.group(1)) == number


def _entry(model: onnx.ModelProto, body: list[onnx.NodeProto], made: set[str]) -> str:
    """The residual stream that the layer begins with: what it reads that another layer made last."""
    outside = {name: place for place, node in enumerate(model.graph.node) for name in node.output if name not in made}
    read = [name for node in body for name in node.input if name in outside]
    first = [name for name in read if _LAYER.match(name) and name.rpartition("/")[2].startswith("Add")]
    return max(first, key=outside.__getitem__)


def _result(model: onnx.ModelProto, body: list[onnx.NodeProto], made: set[str]) -> str:
    """What the rest of the model reads of the layer, besides its cache."""
    inside = {id(node) for node in body}
    (name,) = {name for node in model.graph.node if id(node) not in inside for name in node.input if name in made}
    return name


def _shared_initializers(model: onnx.ModelProto, body: list[onnx.NodeProto]) -> set[str]:
    inside = {id(node) for node in body}
    return {name for node in model.graph.node if id(node) not in inside for name in node.input}


def _renamed(name: str, last: int, number: int) -> str:
    for before, after in ((f"layers.{last}/", f"layers.{number}/"), (f".{last}.", f".{number}.")):
        if before in name:
            return name.replace(before, after)
    return f"{name}.{number}"


def _copy(node: onnx.NodeProto, names: dict[str, str], last: int, number: int) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = _renamed(node.name, last, number)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy
