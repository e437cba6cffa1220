"""Graphs that are nearly a mixture of experts: what `fuse` does with each, exactly.

A twist changes one thing in a graph that is fused. Either the result is still a mixture of experts, then the fused model
must give the outputs of the twisted one (a constant has to be carried, not assumed); or it is not, then the layer must be
refused, by its structure: nothing is verified here, so that a wrong fusion would be seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose, helper, numpy_helper
from support.contrib_graph import ContribMoE, quantised
from support.graph_edit import Editor
from support.looped_graph import Spelling, looped_model
from support.sessions import relative_difference, session
from support.stacked_graph import StackedGraph

from ort_hina import fuse
from ort_hina.report import LayerReport

# Sums in another order: the bound that the fused models of tests/ort_hina/test_fusion.py are held to.
TOLERANCE = 1e-5
SAME, OTHER = False, True  # what a twist does to the outputs

CONTRIB = {"k": 2, "normalize_routing_weights": 1, "activation_type": "swiglu", "swiglu_fusion": 1}
CONTRIB |= {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.0}


class Graph(Editor):
    """The graph that a twist changes. `mark` finds a node of a `StackedGraph` by what it is for."""

    def __init__(self, model: onnx.ModelProto, marks: dict[str, str] | None = None) -> None:
        super().__init__(model)
        self.model, self.marks = model, marks or {}
        nodes = sorted(model.graph.node, key=lambda node: node.op_type != "Constant")  # so that they can be exchanged
        del model.graph.node[:]
        model.graph.node.extend(nodes)

    def mark(self, mark: str) -> onnx.NodeProto:
        return next(node for node in self.graph.node if node.name == self.marks[mark])

    def layer(self, operator: str, prefix: str) -> list[onnx.NodeProto]:
        """Of one of two layers."""
        return [node for node in self.nodes(operator) if node.name.startswith(prefix)]

    def before(
        self, node: onnx.NodeProto, position: int, operator: str, *others: str, last: bool = False, **attributes
    ) -> None:
        """Puts an operator between `node` and its input `position`, which becomes its first input or its `last`."""
        made = self.name()
        inputs = [*others, node.input[position]] if last else [node.input[position], *others]
        place = list(self.graph.node).index(node)
        self.graph.node.insert(place, helper.make_node(operator, inputs, [made], f"node {made}", **attributes))
        node.input[position] = made

    def set(self, node: onnx.NodeProto, **attributes) -> None:
        for name, value in attributes.items():
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def constant_of(self, node: onnx.NodeProto, position: int, value, dtype=np.float32) -> None:
        node.input[position] = self.constant(value, dtype)

    def output(self, value: str, rank: int, dtype: int = TensorProto.FLOAT) -> None:
        """One more output of the model."""
        shape = [f"{value}, axis {axis}" for axis in range(rank)]
        self.graph.output.append(helper.make_tensor_value_info(value, dtype, shape))

    def weight(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._initializer(name))

    def set_weight(self, name: str, array: np.ndarray) -> None:
        self._initializer(name).CopyFrom(numpy_helper.from_array(array, name))

    def as_input(self, name: str) -> None:
        """The caller of the model may replace this weight."""
        tensor = self._initializer(name)
        self.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))

    def _initializer(self, name: str) -> onnx.TensorProto:
        return next(tensor for tensor in self.graph.initializer if tensor.name == name)


# ---- the graphs that are twisted


def looped(**spelling) -> Callable[[], Graph]:
    return lambda: Graph(looped_model(**spelling))


def stacked(**form) -> Callable[[], Graph]:
    def build() -> Graph:
        builder = StackedGraph(Spelling(), **form)
        return Graph(builder.model(), builder.marks)

    return build


def contrib() -> Graph:
    return Graph(ContribMoE(hidden=8, inter=12, attributes=CONTRIB, rank=3, scale=2.0).model())


def quantised_contrib() -> Graph:
    return Graph(quantised(hidden=32))


def two(build: Callable[[], Graph]) -> Callable[[], Graph]:
    """The same layer twice, one after the other; names of the first begin with ``a/``, of the second with ``b/``."""

    def chained() -> Graph:
        first, second = build(), build()
        _with_residual(first)
        merged = compose.merge_models(first.model, second.model, [("y", "x")], prefix1="a/", prefix2="b/")
        marks = {f"{prefix}{mark}": f"{prefix}{name}" for prefix in ("a/", "b/") for mark, name in first.marks.items()}
        graph = Graph(merged, marks)
        for tensor in merged.graph.initializer:  # not twice the same weights
            if tensor.name.startswith("b/"):
                array = numpy_helper.to_array(tensor)
                if array.dtype == np.float32:
                    graph.set_weight(tensor.name, array[::-1].copy() if array.ndim > 2 else -array)
        return graph

    return chained


def _with_residual(graph: Graph) -> None:
    """Where there is none: ``y = x + layer(x)``."""
    last = graph.producer("y")
    if last.op_type != "Add":
        graph.after(last, "Add", "x")


LOOPED, GEMM = looped(), looped(gemm=True)
BATCHED, CLAMPED, DENSE = stacked(), stacked(clamped=True), stacked(form="dense", clamped=True)
GROUPED, SHARED = stacked(form="grouped"), stacked(shared=True)


@dataclass(frozen=True)
class Twist:
    name: str
    build: Callable[[], Graph]
    change: Callable[[Graph], None]
    outputs: bool
    """Whether they become others: a twist that is to be refused, and that nobody could see, would prove nothing."""
    fused: int
    refused: int
    reason: str = ""
    """Of a refusal: a regular expression."""


TWISTS: list[Twist] = []


def twist(build: Callable[[], Graph], outputs: bool, *, fused: int = 0, refused: int = 0, reason: str = ""):
    """Adds a twist to the list."""

    def add(change: Callable[[Graph], None]) -> Callable[[Graph], None]:
        TWISTS.append(Twist(change.__name__, build, change, outputs, fused, refused, reason))
        return change

    return add


# ---- looped: one thing changed in one expert, or in all


@twist(LOOPED, OTHER, fused=1)
def relu_in_all_experts(graph):
    for sigmoid in graph.nodes("Sigmoid"):
        silu = graph.users(sigmoid.output[0])[0]
        gate = sigmoid.input[0]
        graph.graph.node.remove(sigmoid)
        silu.op_type = "Relu"
        silu.input[:] = [gate]


@twist(LOOPED, OTHER, refused=1, reason="activation")
def relu_in_one_expert(graph):
    sigmoid = graph.nodes("Sigmoid")[2]
    silu = graph.users(sigmoid.output[0])[0]
    gate = sigmoid.input[0]
    graph.graph.node.remove(sigmoid)
    silu.op_type = "Relu"
    silu.input[:] = [gate]


@twist(LOOPED, OTHER, refused=1, reason="tanh")
def tanh_for_sigmoid(graph):
    graph.nodes("Sigmoid")[1].op_type = "Tanh"


@twist(LOOPED, OTHER, fused=1)
def gate_and_up_exchanged(graph):
    for gate, up in zip(graph.nodes("MatMul")[0::3], graph.nodes("MatMul")[1::3]):
        gate.input[1], up.input[1] = up.input[1], gate.input[1]


@twist(LOOPED, OTHER, fused=1)
def experts_share_a_weight(graph):
    products = graph.nodes("MatMul")
    products[3].input[1] = products[0].input[1]


@twist(GEMM, OTHER, fused=1)
def the_bias_of_another_expert(graph):
    products = graph.nodes("Gemm")
    products[3].input[2] = products[0].input[2]


@twist(GEMM, OTHER, refused=1, reason="bias")
def one_expert_without_a_bias(graph):
    del graph.nodes("Gemm")[4].input[2]


@twist(GEMM, OTHER, refused=1)
def a_factor_in_gemm(graph):
    graph.set(graph.nodes("Gemm")[4], alpha=1.5)


@twist(LOOPED, SAME, refused=1)
def an_experts_answer_is_an_output(graph):
    graph.output(graph.nodes("MatMul")[5].output[0], 2)


@twist(LOOPED, SAME, refused=1)
def an_experts_answer_is_used_elsewhere(graph):
    graph.graph.node.append(helper.make_node("Neg", [graph.nodes("MatMul")[5].output[0]], ["elsewhere"], "node elsewhere"))
    graph.output("elsewhere", 2)


@twist(LOOPED, SAME, refused=1)
def a_mask_is_an_output(graph):
    graph.output(graph.nodes("NonZero")[1].input[0], 2, TensorProto.BOOL)


@twist(LOOPED, SAME, fused=1)
def ids_are_an_output(graph):
    graph.output(graph.nodes("TopK")[0].output[1], 2, TensorProto.INT64)


@twist(LOOPED, SAME, fused=1)
def weights_are_an_output(graph):
    graph.output(graph.nodes("Div")[0].output[0], 2)


@twist(LOOPED, OTHER, refused=1, reason="experts 0 are added more than once")
def an_experts_number_off_by_one(graph):
    """Expert 1's weights get expert 0's tokens."""
    graph.constant_of(_mask_of(graph, 1), 1, 0, np.int64)


@twist(LOOPED, OTHER, fused=1)
def two_experts_exchanged(graph):
    """Each with all of its weights: a mixture of experts as before, in another order."""
    first, second = _mask_of(graph, 1), _mask_of(graph, 2)
    first.input[1], second.input[1] = second.input[1], first.input[1]


def _mask_of(graph, expert):
    casts = [node for node in graph.nodes("Cast") if node.attribute[0].i == TensorProto.BOOL]
    return graph.producer(casts[expert].input[0])


@twist(LOOPED, OTHER, fused=1)
def k_off_by_one(graph):
    graph.constant_of(graph.nodes("TopK")[0], 1, [3], np.int64)


@twist(LOOPED, OTHER, fused=1)
def an_epsilon_in_the_normalisation(graph):
    graph.after(graph.nodes("ReduceSum")[0], "Add", graph.constant(0.125, np.float32))


@twist(LOOPED, OTHER, fused=1)
def the_worst_experts(graph):
    graph.set(graph.nodes("TopK")[0], largest=0)


@twist(LOOPED, OTHER, fused=1)
def scores_over_the_tokens(graph):
    graph.set(graph.nodes("Softmax")[0], axis=0)


@twist(LOOPED, OTHER, fused=1)
def normalised_over_the_tokens(graph):
    graph.constant_of(graph.nodes("ReduceSum")[0], 1, [0], np.int64)


@twist(LOOPED, OTHER, fused=1)
def normalised_by_the_maximum(graph):
    total = graph.nodes("ReduceSum")[0]
    total.op_type = "ReduceMax"


@twist(LOOPED, OTHER, fused=1)
def weights_are_scaled(graph):
    graph.after(graph.nodes("Div")[0], "Mul", graph.constant(2.5, np.float32))


@twist(LOOPED, OTHER, fused=1)
def weights_of_the_slots_exchanged(graph):
    """In the router: the weights are what they are."""
    graph.after(graph.nodes("Div")[0], "Gather", graph.constant([1, 0]), axis=1)


@twist(LOOPED, OTHER, refused=1)
def the_other_slots_weight(graph):
    """In one expert: it is weighed with what belongs to the token's other choice."""
    place = graph.nodes("Flatten")[1]
    weight = graph.users(place.output[0])[0]
    graph.before(graph.producer(weight.input[1]), 0, "Sub", graph.constant(1), last=True)


@twist(LOOPED, OTHER, refused=1)
def tokens_counted_from_the_end(graph):
    graph.before(_token_gather(graph, 1), 1, "Neg")


def _token_gather(graph, expert):
    """What takes the rows of expert's tokens."""
    product = graph.nodes("MatMul")[3 * expert]
    return graph.producer(graph.producer(product.input[0]).input[0])


@twist(LOOPED, OTHER, refused=1)
def one_expert_reads_something_else(graph):
    graph.before(_token_gather(graph, 1), 0, "Neg")


@twist(LOOPED, OTHER, refused=1)
def slots_taken_for_tokens(graph):
    (turned,) = [n for n in graph.nodes("Transpose") if len(n.attribute[0].ints) == 3]
    graph.set(turned, perm=[2, 0, 1])


@twist(LOOPED, OTHER, refused=1, reason="Not")
def a_mask_inverted(graph):
    cast = [node for node in graph.nodes("Cast") if node.attribute[0].i == TensorProto.BOOL][1]
    graph.after(cast, "Not")


@twist(LOOPED, OTHER, refused=1)
def scattered_along_the_features(graph):
    graph.set(graph.nodes("ScatterElements")[0], axis=1)


@twist(looped(combine="scatter_elements_add"), OTHER, refused=1)
def scattered_with_products(graph):
    graph.set(graph.nodes("ScatterElements")[1], reduction="mul")


@twist(looped(combine="scatter_nd_add"), OTHER, refused=1)
def scattered_with_the_larger(graph):
    graph.set(graph.nodes("ScatterND")[1], reduction="max")


@twist(looped(combine="scatter_nd_add"), OTHER, refused=1)
def scattered_over_what_was_there(graph):
    graph.set(graph.nodes("ScatterND")[1], reduction="none")


@twist(LOOPED, OTHER, refused=1)
def summed_from_one(graph):
    zeros = graph.nodes("ConstantOfShape")[0]
    graph.set(zeros, value=numpy_helper.from_array(np.ones(1, np.float32)))


@twist(LOOPED, OTHER, refused=1, reason="experts 0 are added more than once")
def an_expert_twice(graph):
    last = graph.producer(graph.nodes("Reshape")[-1].input[0])
    first = next(node for node in graph.nodes("Add") if graph.nodes("ScatterElements")[0].output[0] in node.input)
    graph.after(last, "Add", first.input[1])


@twist(LOOPED, OTHER, refused=1)
def an_expert_subtracted(graph):
    next(n for n in graph.nodes("Add") if graph.nodes("ScatterElements")[2].output[0] in n.input).op_type = "Sub"


@twist(looped(bodies=(0, 1, 3)), SAME, refused=1, reason="missing 2")
def an_expert_missing(graph):
    pass  # the graph was built so


@twist(LOOPED, SAME, refused=1)
def a_weight_is_an_input(graph):
    graph.as_input(graph.nodes("MatMul")[4].input[1])


@twist(LOOPED, OTHER, refused=1)
def rounded_inside(graph):
    for down in graph.nodes("MatMul")[2::3]:
        hidden = graph.producer(down.input[0])
        graph.after(hidden, "Cast", to=TensorProto.FLOAT)
        graph.after(hidden, "Cast", to=TensorProto.FLOAT16)


@twist(LOOPED, OTHER, refused=1)
def one_expert_scaled(graph):
    graph.after(graph.nodes("MatMul")[5], "Mul", graph.constant(1.5, np.float32))


@twist(LOOPED, OTHER, refused=1)
def a_weight_at_the_wrong_place(graph):
    """slot + token, where a row of weights has k elements."""
    (weight,) = graph.users(graph.nodes("Flatten")[1].output[0])
    place = graph.producer(weight.input[1])
    graph.constant_of(graph.producer(place.input[1]), 1, [1], np.int64)


@twist(LOOPED, OTHER, refused=1)
def scattered_to_the_slots(graph):
    """The rows that an expert's answers are added to are given by the slot, not by the token."""
    place = graph.producer(graph.users(graph.nodes("Flatten")[0].output[0])[0].input[1])
    column = graph.producer(graph.producer(graph.nodes("ScatterElements")[0].input[1]).input[0])
    column.input[0] = place.input[0]


@twist(LOOPED, OTHER, refused=1)
def masks_of_ones_and_zeros_exchanged(graph):
    graph.constant_of(graph.nodes("OneHot")[0], 2, [1, 0], np.int64)


@twist(LOOPED, SAME, fused=1)
def a_one_hot_of_five(graph):
    """The router has four scores, so that the fifth is never chosen."""
    graph.constant_of(graph.nodes("OneHot")[0], 1, 5, np.int64)


@twist(looped(mask="equal"), OTHER, refused=1)
def experts_up_to_a_number(graph):
    graph.nodes("Equal")[1].op_type = "LessOrEqual"


@twist(looped(mask="equal"), SAME, fused=1)
def ids_in_32_bits_and_back(graph):
    for equal in graph.nodes("Equal"):
        graph.before(equal, 0, "Cast", to=TensorProto.INT32)
        graph.before(equal, 0, "Cast", to=TensorProto.INT64)


@twist(LOOPED, OTHER, refused=1)
def summed_onto_the_tokens(graph):
    """A residual in the place of the zeros."""
    first = next(node for node in graph.nodes("Add") if graph.nodes("ScatterElements")[0].output[0] in node.input)
    first.input[0] = graph.producer(graph.producer(_token_gather(graph, 0).input[0]).input[0]).output[0]


@twist(LOOPED, OTHER, refused=1)
def gates_of_one_unit(graph):
    """They broadcast over the hidden units."""
    for gate in graph.nodes("MatMul")[0::3]:
        graph.set_weight(gate.input[1], graph.weight(gate.input[1])[:, :1].copy())


@twist(GEMM, OTHER, refused=1)
def a_bias_of_one_element(graph):
    name = graph.nodes("Gemm")[4].input[2]
    graph.set_weight(name, graph.weight(name)[:1].copy())


@twist(GEMM, OTHER, refused=1)
def biases_of_one_element(graph):
    for gemm in graph.nodes("Gemm"):
        graph.set_weight(gemm.input[2], graph.weight(gemm.input[2])[:1].copy())


@twist(GEMM, OTHER, refused=1)
def a_factor_of_the_bias(graph):
    graph.set(graph.nodes("Gemm")[4], beta=0.5)


@twist(looped(gemm=True, inter=8), OTHER, fused=1)
def square_matrices_the_other_way(graph):
    for gemm in graph.nodes("Gemm"):
        graph.set(gemm, transB=0)


@twist(looped(gemm=True, inter=8), OTHER, refused=1)
def one_square_matrix_the_other_way(graph):
    graph.set(graph.nodes("Gemm")[4], transB=0)


@twist(looped(activation="gelu_operator", opset=20), OTHER, fused=1)
def gelu_with_tanh(graph):
    for gelu in graph.nodes("Gelu"):
        graph.set(gelu, approximate="tanh")


@twist(looped(activation="gelu"), OTHER, refused=1)
def gelu_of_another_width(graph):
    for erf in graph.nodes("Erf"):
        graph.constant_of(graph.producer(erf.input[0]), 1, 1.5)


@twist(LOOPED, OTHER, fused=1)
def quick_gelu(graph):
    """x · sigmoid(1.702 x), which is clamped swiglu without its clamps."""
    for sigmoid in graph.nodes("Sigmoid"):
        graph.before(sigmoid, 0, "Mul", graph.constant(1.702, np.float32))


@twist(LOOPED, SAME, fused=1)
def unsorted_choices(graph):
    graph.set(graph.nodes("TopK")[0], sorted=0)


# ---- batched


@twist(BATCHED, OTHER, refused=1)
def down_of_the_other_slot(graph):
    graph.before(graph.mark("second_matrices"), 1, "Gather", graph.constant(_pairs_exchanged()), axis=0)


def _pairs_exchanged(tokens: int = 8, k: int = 2) -> np.ndarray:
    return np.arange(tokens * k).reshape(tokens, k)[:, ::-1].reshape(-1)


@twist(BATCHED, OTHER, refused=1, reason="ReduceMean")
def the_mean_over_the_slots(graph):
    graph.mark("sum").op_type = "ReduceMean"


@twist(BATCHED, OTHER, refused=1, reason="ReduceMax")
def the_largest_over_the_slots(graph):
    graph.mark("sum").op_type = "ReduceMax"


@twist(BATCHED, OTHER, refused=1)
def tokens_repeated_in_turns(graph):
    """T rows and again T rows, where the ids have each token's k side by side."""
    graph.constant_of(graph.mark("copies"), 1, [0], np.int64)
    graph.constant_of(graph.mark("spread"), 1, [2, 1, 1], np.int64)


@twist(BATCHED, OTHER, refused=1)
def summed_over_other_tokens(graph):
    graph.constant_of(graph.mark("slots"), 1, [2, -1, 8], np.int64)
    graph.constant_of(graph.mark("sum"), 1, [0], np.int64)


@twist(BATCHED, OTHER, refused=1)
def weights_in_the_order_of_the_slots(graph):
    graph.before(graph.mark("flat_weights"), 0, "Transpose", perm=[1, 0])


@twist(BATCHED, OTHER, refused=1)
def ids_in_the_order_of_the_slots(graph):
    graph.before(graph.mark("flat_ids"), 0, "Transpose", perm=[1, 0])


@twist(BATCHED, SAME, refused=2)
def ids_counted_from_the_end(graph):
    """GatherND takes -1 for the last expert, the operator MoE does not."""
    graph.before(graph.mark("flat_ids"), 0, "Sub", graph.constant(4))


@twist(BATCHED, OTHER, refused=2)
def an_id_off_by_one(graph):
    """Every choice goes to the expert before, the first one's to the last."""
    graph.before(graph.mark("flat_ids"), 0, "Sub", graph.constant(1))


@twist(BATCHED, OTHER, fused=1)
def halves_exchanged(graph):
    halves = graph.mark("halves")
    halves.output[:] = list(halves.output)[::-1]


@twist(BATCHED, OTHER, refused=1)
def uneven_halves(graph):
    """One gate for all hidden units: it broadcasts."""
    halves, down = graph.mark("halves"), graph.mark("second_matrices")
    del halves.attribute[:]
    halves.attribute.append(helper.make_attribute("axis", 1))
    halves.input.append(graph.constant([1, 23]))
    old = graph.weight(down.input[0])
    graph.set_weight(down.input[0], np.concatenate([old, old[:, :, :11]], axis=2))


@twist(BATCHED, OTHER, refused=1)
def a_gate_without_its_linear_part(graph):
    """sigmoid(gate) · up, where silu is gate · sigmoid(gate)."""
    graph.mark("product").input[0] = graph.mark("sigmoid").output[0]


@twist(BATCHED, OTHER, fused=1)
def gate_times_the_sigmoid_of_up(graph):
    """Times up: silu(up) · gate, so the two have changed places."""
    graph.mark("sigmoid").input[0] = graph.mark("halves").output[1]


@twist(BATCHED, SAME, refused=1)
def a_stack_is_an_input(graph):
    graph.as_input(graph.mark("second_matrices").input[0])


@twist(BATCHED, SAME, refused=1)
def hidden_units_are_an_output(graph):
    graph.output(graph.mark("product").output[0], 2)


@twist(BATCHED, SAME, fused=1)
def scores_are_an_output(graph):
    graph.output(graph.mark("scores").output[0], 2)


@twist(BATCHED, OTHER, fused=1)
def experts_chosen_by_other_scores(graph):
    """Ids from the logits of -x, weights from those of x."""
    logits = graph.mark("logits")
    place = list(graph.graph.node).index(graph.mark("choice"))
    inputs = ["turned logits", graph.mark("choice").input[1]]
    graph.graph.node.insert(place, helper.make_node("TopK", inputs, ["unused", "chosen"], "node chosen", axis=-1))
    graph.graph.node.insert(place, helper.make_node("Neg", [logits.output[0]], ["turned logits"], "node turned"))
    graph.mark("flat_ids").input[0] = "chosen"


@twist(BATCHED, OTHER, fused=1)
def another_residual(graph):
    graph.before(graph.mark("residual"), 0, "Neg")


def _weights_first(graph: Graph) -> str:
    """Computes the column of routing weights before the tokens are repeated, and gives its name."""
    flat = graph.mark("flat_weights")
    (column,) = graph.users(flat.output[0])
    moved = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (flat, column)]
    for node in (flat, column):
        graph.graph.node.remove(node)
    place = list(graph.graph.node).index(graph.mark("copies"))
    for node in reversed(moved):
        graph.graph.node.insert(place, node)
    return moved[1].output[0]


@twist(BATCHED, OTHER, refused=1)
def weights_on_the_input(graph):
    """As Llama-4: the expert sees weight · x."""
    weights, weighed = _weights_first(graph), graph.mark("weighed")
    graph.users(weighed.output[0])[0].input[0] = weighed.input[0]
    graph.graph.node.remove(weighed)
    graph.after(graph.mark("repeated"), "Mul", weights)


@twist(BATCHED, OTHER, refused=1)
def weights_on_the_input_and_the_output(graph):
    graph.after(graph.mark("repeated"), "Mul", _weights_first(graph))


@twist(CLAMPED, OTHER, refused=1)
def weights_before_down(graph):
    """They weigh the hidden units, and not the bias of down."""
    weights, weighed = _weights_first(graph), graph.mark("weighed")
    graph.users(weighed.output[0])[0].input[0] = weighed.input[0]
    graph.graph.node.remove(weighed)
    graph.after(graph.mark("product"), "Mul", weights)


@twist(CLAMPED, OTHER, refused=1)
def a_bias_after_the_weights(graph):
    weighed, bias = graph.mark("weighed"), graph.mark("second_bias")
    (added,) = graph.users(bias.output[0])
    weighed.input[0] = added.input[0]
    graph.graph.node.remove(added)
    graph.after(weighed, "Add", bias.output[0])


@twist(BATCHED, OTHER, refused=1)
def tokens_in_another_order(graph):
    """Of the experts only: routed as if they were in their own."""
    graph.before(graph.mark("copies"), 0, "Gather", graph.constant(np.arange(8)[::-1]), axis=0)


@twist(BATCHED, SAME, fused=1)
def matrices_gathered_along_an_axis(graph):
    """Gather with the flat ids, where GatherND has them in a column."""
    for matrices in (graph.mark("first_matrices"), graph.mark("second_matrices")):
        matrices.op_type = "Gather"
        matrices.input[1] = graph.mark("flat_ids").output[0]


@twist(BATCHED, OTHER, refused=1)
def a_stack_in_another_order(graph):
    graph.before(graph.mark("second_matrices"), 0, "Gather", graph.constant([3, 2, 1, 0]), axis=0)


@twist(BATCHED, OTHER, fused=1)
def a_stack_stored_in_another_order(graph):
    name = graph.mark("second_matrices").input[0]
    graph.set_weight(name, graph.weight(name)[::-1].copy())


@twist(BATCHED, SAME, refused=1)
def a_stack_of_five(graph):
    """The last expert cannot be chosen; nothing says so."""
    name = graph.mark("second_matrices").input[0]
    graph.set_weight(name, np.concatenate([graph.weight(name), np.ones((1, 8, 12), np.float32)]))


@twist(BATCHED, OTHER, refused=1)
def the_sum_of_one_slot(graph):
    graph.before(graph.mark("sum"), 0, "Slice", *(graph.constant([number]) for number in (0, 1, 1)))


# ---- clamped swiglu


@twist(CLAMPED, OTHER, fused=1)
def alpha_carried(graph):
    graph.constant_of(graph.mark("alpha"), 1, 1.703)


@twist(CLAMPED, OTHER, fused=1)
def beta_carried(graph):
    graph.constant_of(graph.mark("beta"), 1, 2.0)


@twist(CLAMPED, OTHER, fused=1)
def limits_carried(graph):
    graph.constant_of(graph.mark("gate_clip"), 2, 0.5)
    graph.constant_of(graph.mark("up_clip"), 1, -0.5)
    graph.constant_of(graph.mark("up_clip"), 2, 0.5)


@twist(CLAMPED, OTHER, refused=1)
def gate_and_up_of_clamped_swiglu_exchanged(graph):
    """A mixture of experts, but the operator MoE has interleaved columns with gate's before up's only."""
    gate, up = graph.mark("gate"), graph.mark("up")
    gate.input[1], up.input[1] = up.input[1], gate.input[1]


@twist(CLAMPED, OTHER, refused=1)
def clips_exchanged(graph):
    """Up is clamped above only, and the gate on both sides."""
    gate, up = graph.mark("gate_clip"), graph.mark("up_clip")
    gate.input[1], up.input[1] = up.input[1], ""


@twist(CLAMPED, OTHER, refused=1)
def two_limits(graph):
    graph.constant_of(graph.mark("gate_clip"), 2, 0.5)


@twist(CLAMPED, OTHER, refused=1)
def a_clip_that_is_not_symmetric(graph):
    graph.constant_of(graph.mark("up_clip"), 1, -0.25)


@twist(CLAMPED, OTHER, refused=1)
def a_sigmoid_of_what_was_not_clamped(graph):
    graph.mark("alpha").input[0] = graph.mark("gate").output[0]


@twist(CLAMPED, OTHER, refused=1)
def biases_of_other_experts(graph):
    graph.before(graph.mark("first_bias"), 1, "Gather", graph.constant(_pairs_exchanged()), axis=0)


@twist(CLAMPED, OTHER, refused=1)
def alpha_for_each_hidden_unit(graph):
    graph.constant_of(graph.mark("alpha"), 1, np.linspace(1, 2, 12))


# ---- dense


@twist(DENSE, OTHER)
def scores_scattered_along_the_tokens(graph):
    graph.set(graph.mark("scattered"), axis=0)


@twist(DENSE, OTHER)
def experts_that_were_not_chosen_count_too(graph):
    graph.set(graph.mark("zeros"), value=numpy_helper.from_array(np.full(1, 0.5, np.float32)))


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def the_mean_over_the_experts(graph):
    graph.mark("sum").op_type = "ReduceMean"


@twist(DENSE, OTHER, refused=1, reason="joins or splits axes")
def scores_that_were_not_turned(graph):
    graph.set(graph.mark("turned"), perm=[0, 1])


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def scores_in_the_wrong_order(graph):
    graph.after(graph.mark("scattered"), "Gather", graph.constant([1, 0, 2, 3]), axis=1)


@twist(DENSE, OTHER, fused=1)
def alpha_carried_by_dense(graph):
    graph.constant_of(graph.mark("alpha"), 1, 1.703)


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def a_bias_before_the_matrix(graph):
    """Of the hidden units, where an expert's own would come after."""
    graph.before(graph.mark("second_product"), 0, "Add", graph.constant(np.full((4, 1, 12), 0.5), np.float32))


@twist(DENSE, SAME, refused=1)
def every_experts_answer_is_an_output(graph):
    graph.output(graph.mark("second_bias").output[0], 3)


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def tiled_along_the_features(graph):
    graph.constant_of(graph.mark("tiled"), 1, [1, 4], np.int64)


@twist(DENSE, OTHER, fused=1)
def one_bias_for_all_experts(graph):
    name = graph.mark("first_bias").input[1]
    graph.set_weight(name, graph.weight(name)[:1].copy())


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def one_bias_for_all_features(graph):
    name = graph.mark("second_bias").input[1]
    graph.set_weight(name, graph.weight(name)[:, :, :1].copy())


@twist(DENSE, SAME)
def scattered_with_a_sum(graph):
    """Onto zeros, and no id occurs twice."""
    graph.set(graph.mark("scattered"), reduction="add")


@twist(DENSE, OTHER, refused=1, reason="not understood at this place")
def scores_rounded_up(graph):
    graph.after(graph.mark("turned"), "Ceil")


# ---- grouped


@twist(GROUPED, OTHER, refused=1)
def a_histogram_without_its_last_bin(graph):
    graph.constant_of(graph.mark("clip"), 2, 2, np.int64)


@twist(GROUPED, OTHER, refused=1)
def bins_of_another_width(graph):
    graph.constant_of(graph.mark("bins"), 1, 1.75)


@twist(GROUPED, OTHER, refused=1, reason="sorted in another way")
def sorted_downwards(graph):
    graph.set(graph.mark("sort"), largest=1)


@twist(GROUPED, OTHER, refused=1)
def groups_joined_in_another_order(graph):
    joined = graph.mark("second_joined")
    joined.input[:] = list(joined.input)[::-1]


@twist(GROUPED, OTHER, refused=1, reason="equal distances")
def matrices_of_other_experts(graph):
    """Still a mixture of experts, but not in the order of its stack."""
    matrices = graph.producer(graph.mark("second_matrix_0").input[0])
    matrices.output[:] = [matrices.output[i] for i in (1, 0, 2, 3)]


@twist(GROUPED, OTHER, refused=1)
def not_sorted_back(graph):
    graph.mark("back").input[1] = graph.mark("order_column").output[0]


@twist(GROUPED, OTHER, refused=1)
def tokens_of_other_pairs(graph):
    graph.constant_of(graph.mark("token"), 1, 3, np.int64)


@twist(GROUPED, OTHER, refused=1)
def weights_that_were_not_sorted(graph):
    node = graph.mark("weighed")
    graph.producer(node.input[1]).input[0] = graph.mark("flat_weights").output[0]


@twist(GROUPED, SAME, refused=1)
def the_order_is_an_output(graph):
    graph.output(graph.mark("sort").output[1], 1, TensorProto.INT64)


# ---- shared experts: what is twisted outside the routed ones leaves those alone


@twist(SHARED, OTHER, fused=1)
def a_shared_expert_weighed_otherwise(graph):
    graph.mark("shared_weight").op_type = "Tanh"


@twist(SHARED, OTHER, fused=1)
def a_shared_expert_with_another_activation(graph):
    graph.mark("shared_sigmoid").op_type = "Tanh"


@twist(SHARED, SAME, fused=1)
def a_shared_experts_answer_is_an_output(graph):
    graph.output(graph.mark("shared_down").output[0], 2)


@twist(SHARED, OTHER, fused=1)
def a_shared_expert_subtracted(graph):
    graph.mark("with_shared").op_type = "Sub"


@twist(SHARED, OTHER, fused=1)
def a_shared_expert_of_other_tokens(graph):
    graph.before(graph.mark("shared_gate"), 0, "Neg")


# ---- com.microsoft MoE


@twist(contrib, OTHER, fused=1)
def contrib_k(graph):
    graph.set(graph.nodes("MoE")[0], k=3)


@twist(contrib, OTHER, fused=1)
def contrib_alpha(graph):
    graph.set(graph.nodes("MoE")[0], activation_alpha=1.703)


@twist(contrib, OTHER, fused=1)
def contrib_not_normalised(graph):
    graph.set(graph.nodes("MoE")[0], normalize_routing_weights=0)


@twist(contrib, OTHER, fused=1)
def contrib_one_stack_turned(graph):
    name = graph.nodes("MoE")[0].input[4]
    graph.set_weight(name, graph.weight(name)[::-1].copy())


@twist(contrib, SAME, refused=1, reason="'use_sparse_mixer'")
def contrib_sparse_mixer(graph):
    graph.set(graph.nodes("MoE")[0], use_sparse_mixer=1)


@twist(contrib, SAME, refused=1, reason=r"input 4 \(fc2_experts_weights\) is an input of the model")
def contrib_stack_is_an_input(graph):
    graph.as_input(graph.nodes("MoE")[0].input[4])


@twist(contrib, SAME, refused=1, reason=r"input 2 \(fc1_experts_weights\) is computed by Identity")
def contrib_stack_is_computed(graph):
    graph.before(graph.nodes("MoE")[0], 2, "Identity")


@twist(quantised_contrib, SAME, refused=1, reason=r"quantised weights \(int4, block 32\)")
def contrib_quantised(graph):
    pass  # the graph was built so


# ---- two layers


@twist(two(LOOPED), OTHER, fused=2)
def weights_of_the_other_layers_router(graph):
    first, second = graph.nodes("Div")
    for user in graph.users(second.output[0]):
        user.input[list(user.input).index(second.output[0])] = first.output[0]


@twist(two(LOOPED), OTHER, fused=2)
def an_experts_matrix_from_the_other_layer(graph):
    first, second = graph.layer("MatMul", "a/"), graph.layer("MatMul", "b/")
    second[4].input[1] = first[4].input[1]


@twist(two(BATCHED), OTHER, fused=2)
def ids_of_the_other_layers_router(graph):
    """Both layers have one choice of experts, each with weights of its own."""
    graph.mark("b/flat_ids").input[0] = graph.mark("a/choice").output[1]


@twist(two(BATCHED), OTHER, fused=2)
def the_residual_of_the_other_layer(graph):
    graph.mark("b/residual").input[0] = graph.graph.input[0].name


@twist(two(BATCHED), OTHER, refused=2)
def down_chosen_by_the_other_layer(graph):
    graph.mark("b/second_matrices").input[1] = graph.mark("a/index").output[0]


@twist(two(CLAMPED), OTHER, fused=2)
def tokens_of_the_other_layer(graph):
    graph.mark("b/copies").input[0] = graph.mark("a/rows").output[0]


@twist(two(LOOPED), OTHER, refused=2)
def a_mask_of_the_other_layer(graph):
    masks = [node for node in graph.nodes("Transpose") if len(node.attribute[0].ints) == 3]
    expert = [node for node in graph.users(masks[1].output[0]) if node.op_type == "Gather"][1]
    expert.input[0] = masks[0].output[0]


@twist(two(LOOPED), OTHER, fused=1, refused=1)
def one_expert_with_the_other_layers_weights(graph):
    first, second = graph.layer("Flatten", "a/")[1], graph.layer("Flatten", "b/")[1]
    second.input[0] = first.input[0]


@twist(two(LOOPED), OTHER, fused=1, refused=1)
def one_expert_with_the_other_layers_tokens(graph):
    first, second = graph.layer("MatMul", "a/")[3], graph.layer("MatMul", "b/")[3]
    gathers = [graph.producer(graph.producer(node.input[0]).input[0]) for node in (first, second)]
    gathers[1].input[0] = gathers[0].input[0]


@twist(two(contrib), OTHER, fused=2)
def logits_of_the_other_layer(graph):
    first, second = graph.nodes("MoE")
    second.input[1] = first.input[1]


# ---- what is checked


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """8 tokens for every input that is not a weight; the same whatever the twist."""
    weights = {tensor.name for tensor in model.graph.initializer}
    made = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        random = np.random.default_rng(len(made))
        width = value.type.tensor_type.shape.dim[-1].dim_value
        shape = (2, 4, width) if len(value.type.tensor_type.shape.dim) == 3 else (8, width)
        made[value.name] = (2 * random.standard_normal(shape)).astype(np.float32)
    return made


def outputs(model) -> list[np.ndarray]:
    loaded = onnx.load(model) if not isinstance(model, onnx.ModelProto) else model
    return session(model).run(None, feeds(loaded))


UNTWISTED = {
    "looped": LOOPED,
    "gemm": GEMM,
    "batched": BATCHED,
    "clamped": CLAMPED,
    "dense": DENSE,
    "grouped": GROUPED,
    "shared": SHARED,
    "contrib": contrib,
    "two looped": two(LOOPED),
    "two batched": two(BATCHED),
    "two clamped": two(CLAMPED),
    "two contrib": two(contrib),
}


@pytest.mark.parametrize("build", UNTWISTED.values(), ids=UNTWISTED)
def test_untwisted(build, tmp_path):
    """Whatever is refused below is refused for its twist."""
    graph = build()
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(graph.model), path)
    report = fuse(path, verify="none")
    assert report.fused == len(report.layers) >= 1, report.to_text()
    assert_equal(outputs(report.output), outputs(path))


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        if other.dtype == np.float32:
            assert relative_difference(one, other) < TOLERANCE
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", TWISTS, ids=lambda case: case.name)
def test_twist(case, tmp_path):
    graph = case.build()
    before = outputs(graph.model)[0]
    case.change(graph)
    onnx.checker.check_model(graph.model)
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(graph.model), path)
    expected = outputs(path)
    difference = relative_difference(expected[0], before)
    assert difference > 3 * TOLERANCE if case.outputs is OTHER else difference < TOLERANCE

    report = fuse(path, verify="none")

    refused = [layer for layer in report.layers if not layer.fused]
    assert (report.fused, len(refused)) == (case.fused, case.refused), report.to_text()
    for layer in refused:
        assert_names_a_place(layer, graph.model)
        assert re.search(case.reason, layer.reason), layer.reason
    if report.output is not None:
        assert_equal(outputs(report.output), expected)
    if not report.layers:
        assert any("TopK" in warning for warning in report.warnings)


def assert_names_a_place(layer: LayerReport, model: onnx.ModelProto) -> None:
    """The reason has a node or a value in quotes, unless it is about all experts; where the layer is, is told in any case."""
    nodes = {node.name for node in model.graph.node}
    assert any(name.startswith(layer.where) for name in nodes)
    names = nodes | {name for node in model.graph.node for name in (*node.input, *node.output)}
    names_one = any(f"'{name}'" in layer.reason for name in names)
    assert names_one or re.search(r"^(the )?experts |missing \d", layer.reason), layer.reason
