"""What the recogniser of unrolled mixtures of experts understands, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.looped_graph import (
    SPELLINGS,
    LoopedGraph,
    Spelling,
    looped_model,
    spelling_name,
)

from ort_hina.graph_passes import routed_moe
from ort_hina.graph_passes.moe_layer import MoELayer, Refused

OPSETS = (14, 16, 17, 18, 19, 20, 21, 23)


def found(model: onnx.ModelProto) -> MoELayer | Refused:
    (layer,) = routed_moe.find(ir.from_proto(model).graph)
    return layer


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset_that_optimum_writes(tiny_export, opset):
    layers = routed_moe.find(ir.load(tiny_export(opset=opset, external=False)).graph)
    sizes = [(layer.num_experts, layer.k, layer.hidden_size, layer.intermediate_size) for layer in layers]
    assert sizes == [(8, 2, 64, 96)] * 2
    assert {layer.activation.name for layer in layers} == {"silu"}


def test_dense_layers_between_and_no_normalisation(tiny_export):
    (layer,) = routed_moe.find(ir.load(tiny_export("qwen3_moe_nonorm_dense", external=False)).graph)
    assert (layer.num_experts, layer.k, layer.intermediate_size) == (8, 3, 72)


def test_half_precision_export(tiny_export):
    layers = routed_moe.find(ir.load(tiny_export(dtype="fp16", external=False)).graph)
    assert [layer.dtype for layer in layers] == [ir.DataType.FLOAT16] * 2


def test_names_play_no_part(tiny_export):
    model = onnx.load(tiny_export(external=False))
    numbers: dict[str, str] = {}
    for node in model.graph.node:
        node.name = ""
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = numbers.setdefault(name, f"v{len(numbers)}") if name else ""
    for value in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        value.name = numbers.setdefault(value.name, f"v{len(numbers)}")
    assert [type(layer) for layer in routed_moe.find(ir.from_proto(model).graph)] == [MoELayer, MoELayer]


def test_weights_belong_to_their_experts():
    builder = LoopedGraph(Spelling(experts=3))
    model = builder.model()
    layer = found(model)
    names = [t.name for t in model.graph.initializer]
    assert [[e.gate.matrix.tensor.name, e.up.matrix.tensor.name, e.down.matrix.tensor.name] for e in layer.experts] == [
        names[0:3],
        names[3:6],
        names[6:9],
    ]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=spelling_name)
def test_other_spellings(spelling):
    layer = found(looped_model(**spelling))
    assert isinstance(layer, MoELayer), layer
    assert layer.activation.name == spelling.get("activation", "silu").removesuffix("_operator")
    assert (layer.experts[0].up is None) == (not spelling.get("gated", True))
    assert layer.layout == ("[N, K]" if "transposed" in spelling or "gemm" in spelling else "[K, N]")


def test_missing_experts_are_listed():
    layer = found(looped_model(experts=6, bodies=(0, 2, 5)))
    assert isinstance(layer, MoELayer)
    assert (layer.missing, layer.num_experts, layer.k) == ([1, 3, 4], 6, 2)
    assert [expert is None for expert in layer.experts] == [False, True, False, True, True, False]


def test_an_expert_added_twice():
    layer = found(looped_model(experts=3, bodies=(0, 1, 2, 1)))
    assert isinstance(layer, Refused) and "experts 1 are added more than once" in layer.reason


def test_an_expert_twice_and_another_left_out_of_the_sum():
    """As many outputs are added as there are experts."""
    model = looped_model(experts=4, bodies=(0, 1, 1, 2, 3))
    (reshape,) = (node for node in model.graph.node if "y" in node.output)
    adds = [node for node in model.graph.node if node.op_type == "Add"]
    reshape.input[0] = adds[-2].output[0]
    layer = found(model)
    assert isinstance(layer, Refused) and "experts 1 are added more than once" in layer.reason


def test_experts_that_differ():
    model = looped_model(experts=3)
    tensor = model.graph.initializer[3]
    gate = onnx.numpy_helper.to_array(tensor)
    (user,) = (node for node in model.graph.node if tensor.name in node.input)
    tensor.CopyFrom(onnx.numpy_helper.from_array(gate.T.copy(), tensor.name))
    place = list(model.graph.node).index(user)
    model.graph.node.insert(place, onnx.helper.make_node("Transpose", [tensor.name], ["turned"], perm=[1, 0]))
    user.input[1] = "turned"
    layer = found(model)
    assert isinstance(layer, Refused) and "differ in size, type, layout, biases or activation" in layer.reason


def test_a_router_wider_than_the_one_hot():
    model = looped_model(experts=4)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5
    layer = found(model)
    assert isinstance(layer, Refused) and "OneHot has a depth of 4, and the router chooses from 5 experts" in layer.reason


def test_top_k_alone_is_no_layer():
    """Sampling has one, too."""
    model = looped_model(experts=4)
    del model.graph.node[next(i for i, node in enumerate(model.graph.node) if node.op_type == "OneHot") :]
    assert routed_moe.find(ir.from_proto(model).graph) == []


def edit(model: onnx.ModelProto, operator: str, which: int) -> onnx.NodeProto:
    return [node for node in model.graph.node if node.op_type == operator][which]


def _other_operator(old: str, new: str):
    def change(model):
        edit(model, old, 0).op_type = new

    return change


def _one_hot_values(model):
    values = next(node for node in model.graph.node if edit(model, "OneHot", 0).input[2] in node.output)
    values.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 0])))


def _rows_of_another_expert(model):
    rows = [node for node in model.graph.node if node.op_type == "Gather" and node.attribute[0].i == 1]
    rows[1].input[1] = rows[0].input[1]


def _expert_out_of_range(model):
    index = edit(model, "Gather", 3).input[1]
    constant = next(node for node in model.graph.node if index in node.output)
    constant.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.int64(3)))


def _mask_order(model):
    """The axes of the mask say (token, slot), and the rest of the graph takes the coordinates for (slot, token)."""
    edit(model, "Transpose", 0).attribute[0].ints[:] = [2, 0, 1]


def _scattered_to_another_expert(model):
    edit(model, "ScatterElements", 1).input[1] = edit(model, "ScatterElements", 0).input[1]


def _bias_inside(model):
    constant = onnx.numpy_helper.from_array(np.float32(0.1), "constant")
    model.graph.initializer.append(constant)
    gather = edit(model, "MatMul", 2)
    place = list(model.graph.node).index(gather)
    model.graph.node.insert(place, onnx.helper.make_node("Add", [gather.input[0], "constant"], ["shifted"], name="shift"))
    gather.input[0] = "shifted"


def _inner_output(model):
    value = edit(model, "MatMul", 1).output[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None))


def _inner_user(model):
    one_hot = edit(model, "OneHot", 0).output[0]
    model.graph.node.append(onnx.helper.make_node("ReduceSum", [one_hot], ["load"], name="statistics"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("load", onnx.TensorProto.INT64, None))


def _zeros_are_ones(model):
    edit(model, "ConstantOfShape", 0).attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32)))


def _weights_at_other_stride(model):
    """slot * k + token"""
    add = edit(model, "Add", 0)
    multiply = next(node for node in model.graph.node if add.input[1] in node.output)
    multiply.input[0], add.input[0] = add.input[0], multiply.input[0]


def _replaceable_weight(model):
    weight = model.graph.initializer[0]
    model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_operator("Sigmoid", "Tanh"), "x * tanh(x) * y is no activation that is known here (MatMul"),
        (_other_operator("ScatterElements", "GatherElements"), "an Expand could not be proved to fit"),
        (_one_hot_values, "values of OneHot are not [0, 1]"),
        (_mask_order, "not proved to be [tokens, 2]"),
        (_rows_of_another_expert, "multiplied by the routing weights of another"),
        (_expert_out_of_range, "expert 3 is taken from one-hot ids of 3 experts"),
        (_scattered_to_another_expert, "not scattered to the rows of its own tokens"),
        (_bias_inside, "(x * sigmoid(x) * y + 0.1) is no activation"),
        (_inner_output, "is an output of the model"),
        (_inner_user, "is also used by ReduceSum 'statistics'"),
        (_zeros_are_ones, "neither zeros nor an expert"),
        (_weights_at_other_stride, "not gathered at token * k + slot"),
        (_replaceable_weight, "is not a constant initializer"),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else None),
)
def test_refusals_say_why(change, reason):
    model = looped_model(experts=3)
    change(model)
    layer = found(model)
    assert isinstance(layer, Refused), layer
    assert reason in layer.reason


class ScatteredBySlot(LoopedGraph):
    def picks(self, mask):
        token, slot = super().picks(mask)
        self.slot = slot
        return token, slot

    def combine(self, total, output, token):
        return super().combine(total, output, self.slot)


class SlotsOfTheExpertBefore(LoopedGraph):
    before = None

    def pick_weights(self, weights_3d, token, slot):
        used, self.before = self.before or slot, slot
        return super().pick_weights(weights_3d, token, used)


class UpOfTheExpertBefore(LoopedGraph):
    before = None

    def expert(self, features):
        s = self.spelling
        gate = self.activate(self.linear(features, s.hidden, s.inter))
        up = self.linear(self.before or features, s.hidden, s.inter)
        self.before = features
        return self.linear(self.op("Mul", gate, up), s.inter, s.hidden)


class ActivationOfAnother(LoopedGraph):
    """up * sigmoid(gate) is no activation of anything."""

    def expert(self, features):
        s = self.spelling
        gate, up = self.linear(features, s.hidden, s.inter), self.linear(features, s.hidden, s.inter)
        return self.linear(self.op("Mul", self.op("Mul", up, self.op("Sigmoid", gate)), up), s.inter, s.hidden)


class OtherTokens(LoopedGraph):
    """The last expert reads something else."""

    def add_expert(self, total, rows, weights_3d, mask):
        self.count = getattr(self, "count", 0) + 1
        rows = self.op("Neg", rows) if self.count == self.spelling.experts else rows
        return super().add_expert(total, rows, weights_3d, mask)


class OtherWeights(LoopedGraph):
    """The last expert is weighed by something else."""

    def pick_weights(self, weights_3d, token, slot):
        self.count = getattr(self, "count", 0) + 1
        if self.count == self.spelling.experts:
            weights_3d = self.op("Unsqueeze", self.op("Neg", self.op("Squeeze", weights_3d, self.const([2]))), self.const([2]))
        return super().pick_weights(weights_3d, token, slot)


class MoreRows(LoopedGraph):
    """The outputs are summed into a buffer of twice as many rows."""

    def zeros(self, shape):
        first = not hasattr(self, "doubled")
        self.doubled = True
        return super().zeros(self.op("Mul", shape, self.const([2, 1])) if first else shape)


class OneTokenOnly(LoopedGraph):
    """Removes the axis of the tokens: right only where an expert has exactly one."""

    def expert(self, features):
        row = self.op("Squeeze", features, self.const([0]))
        return super().expert(self.op("Unsqueeze", row, self.const([0])))


class WeighedTwice(LoopedGraph):
    def combine(self, total, output, token):
        return super().combine(total, self.op("Mul", output, self.twice), token)

    def pick_weights(self, weights_3d, token, slot):
        self.twice = super().pick_weights(weights_3d, token, slot)
        return self.twice


class ResidualInside(LoopedGraph):
    """Something else than an expert is added on the way."""

    def combine(self, total, output, token):
        return self.op("Add", super().combine(total, output, token), self.rows)

    def add_expert(self, total, rows, weights_3d, mask):
        self.rows = rows
        return super().add_expert(total, rows, weights_3d, mask)


class RoundedOutputs(LoopedGraph):
    def pick_weights(self, weights_3d, token, slot):
        half = self.op("Cast", super().pick_weights(weights_3d, token, slot), to=onnx.TensorProto.FLOAT16)
        return self.op("Cast", half, to=onnx.TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ScatteredBySlot, "not scattered to the rows of its own tokens"),
        (SlotsOfTheExpertBefore, "indices of different picks are added"),
        (UpOfTheExpertBefore, "rows of different tokens or experts are combined"),
        (ActivationOfAnother, "x * sigmoid(y) * "),
        (OtherTokens, "do not all read the same tokens"),
        (OtherWeights, "do not all use the same routing weights"),
        (MoreRows, "not proved to have the shape of the tokens"),
        (OneTokenOnly, "removes an axis that is not proved to have one element"),
        (WeighedTwice, "not understood"),
        (ResidualInside, "neither zeros nor an expert"),
        (RoundedOutputs, "a cast from FLOAT to FLOAT16 inside the experts changes what is rounded"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_almost_a_mixture_of_experts(kind, reason):
    """Each is right in all but one thing."""
    layer = found(kind(Spelling(experts=3)).model())
    assert isinstance(layer, Refused), layer
    assert reason in layer.reason


class UpTransposed(LoopedGraph):
    """Only the up matrices are stored [N, K]."""

    def expert(self, features: str) -> str:
        s = self.spelling
        gate = self.activate(self.linear(features, s.hidden, s.inter))
        up = self.op("MatMul", features, self.op("Transpose", self.weight(s.inter, s.hidden), perm=[1, 0]))
        return self.linear(self.op("Mul", gate, up), s.inter, s.hidden)


def test_gate_and_up_in_different_layouts():
    """The operator has one layout for both, so fusing would write a file that no session accepts."""
    layer = found(UpTransposed(Spelling()).model())
    assert isinstance(layer, Refused) and "the gate and up matrices differ in type or layout" in layer.reason


class Interleaved(LoopedGraph):
    """Gate and up in alternating columns of one matrix; of the experts in `exchanged`, up comes first."""

    exchanged: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.number = -1

    def expert(self, features: str) -> str:
        s = self.spelling
        self.number += 1
        both = self.op("MatMul", features, self.weight(s.hidden, 2 * s.inter))
        even, odd = (
            self.op("Slice", both, self.const([first]), self.const([2**63 - 1]), self.const([1]), self.const([2]))
            for first in (0, 1)
        )
        gate, up = (odd, even) if self.number in self.exchanged else (even, odd)
        return self.linear(self.op("Mul", self.activate(gate), up), s.inter, s.hidden)


def test_interleaved_columns():
    layer = found(Interleaved(Spelling(experts=3)).model())
    assert isinstance(layer, MoELayer)
    gate, up = layer.experts[1].gate.matrix, layer.experts[1].up.matrix
    assert gate.strides == up.strides == (24, 2) and (gate.offset, up.offset) == (0, 1)


@pytest.mark.parametrize("exchanged", [(1,), (0, 1, 2)])
def test_columns_that_no_kernel_reads(exchanged):
    builder = Interleaved(Spelling(experts=3))
    builder.exchanged = exchanged
    layer = found(builder.model())
    assert isinstance(layer, Refused) and "stored with strides (24, 2), which no kernel reads" in layer.reason
