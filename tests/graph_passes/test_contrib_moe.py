"""com.microsoft::MoE: the layer that is recognised computes what ONNX Runtime's own kernel computes, or it is refused."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from support.activations import sigmoid
from support.contrib_graph import ContribMoE, quantised
from support.float32 import UNIT
from support.layer_reference import layer_reference, layer_weights

from ort_hina.graph_passes import contrib_moe
from ort_hina.graph_passes.meanings import Activation
from ort_hina.graph_passes.moe_layer import MoELayer, Refused
from ort_hina.graph_passes.router_spec import RouterSpec

SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1}
SEPARATE = SWIGLU | {"swiglu_fusion": 0}
SILU = {"activation_type": "silu"}
GPT_OSS = SWIGLU | {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}


def found(model: onnx.ModelProto) -> MoELayer | Refused:
    (layer,) = contrib_moe.find(ir.from_proto(model).graph)
    return layer


def refusal(model: onnx.ModelProto) -> str:
    layer = found(model)
    assert isinstance(layer, Refused)
    assert (layer.where, layer.node) == ("moe", "moe/node") and "'moe/node'" in layer.reason
    return layer.reason


def kernel(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The output [T, H] of ONNX Runtime's own operator."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, feeds)
    assert y.shape == feeds["x"].shape
    return y.reshape(-1, y.shape[-1]).astype(np.float64)


def excess(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """The kernel's largest error, in units of the bound: against the layer that was recognised, in float64."""
    layer = found(model)
    assert isinstance(layer, MoELayer), layer.reason
    with np.errstate(invalid="ignore"):  # experts that weigh nothing may answer Inf
        expected, decided = layer_reference(layer, feeds["x"], feeds["logits"])
    assert decided.mean() > 0.9
    bound = expected.error + _gelu_of_the_kernel(layer, feeds["x"])
    return float((np.abs(kernel(model, feeds) - expected.value) / bound)[decided].max())


def _gelu_of_the_kernel(layer: MoELayer, x: np.ndarray) -> np.ndarray:
    """It computes x/2·(1 + tanh(z)), which cancels where z < 0: tanh is good to 2 UNITs and its argument to 6 (|z|·tanh'(z)
    is under 0.45), the sum, at most 2, to 2: 6.7 UNITs in all, half of it times |x|; then 2 UNITs for the products: 6 UNITs
    of |x|."""
    if layer.activation.name != "gelu_tanh":
        return np.zeros(1)
    weights = layer_weights(layer)
    rows = np.abs(x.reshape(-1, x.shape[-1]).astype(np.float64))
    gate = rows @ np.abs(weights.matrices["gate"]) + np.abs(weights.biases["gate"][:, None])
    # All experts at their full weight: there are few, and one is no less than what is routed to.
    return 6 * UNIT * (gate @ np.abs(weights.matrices["down"])).sum(axis=0)


# ---- what it computes


@pytest.mark.parametrize("tokens", (1, 2, 17))
@pytest.mark.parametrize("k", (1, 2, 4))
@pytest.mark.parametrize("activation", ("relu", "gelu", "silu", "identity", "swiglu", "gpt-oss"))
def test_equals_the_kernel(activation, k, tokens):
    named = {"swiglu": SWIGLU, "gpt-oss": GPT_OSS}.get(activation, {"activation_type": activation})
    for normalize, biases, rank, dtype in itertools.product((0, 1), (False, True), (2, 3), (np.float32, np.float16)):
        if activation == "gelu" and not biases:
            continue  # nothing of it depends on the biases
        attributes = named | {"k": k, "normalize_routing_weights": normalize}
        case = ContribMoE(attributes=attributes, biases=biases, rank=rank, dtype=dtype, seed=tokens)
        assert excess(case.model(), case.feeds(tokens)) <= 1


@pytest.mark.parametrize("limit", (None, 7.0, 0.5, 0.0))
@pytest.mark.parametrize(("alpha", "beta"), ((1.702, 1.0), (1.0, 0.0), (0.5, -2.0)))
def test_swiglu_parameters(alpha, beta, limit):
    """Field reports: gpt-oss's numbers were wired in; and a limit of 0 was taken for none."""
    attributes = SWIGLU | {"k": 2, "activation_alpha": alpha, "activation_beta": beta}
    if limit is not None:
        attributes["swiglu_limit"] = limit
    case = ContribMoE(attributes=attributes, scale=8.0)
    feeds = case.feeds(17)
    model = case.model()
    weights = layer_weights(found(model))
    reached = np.abs(feeds["x"].astype(np.float64) @ weights.matrices["gate"]).max()
    assert reached > 20
    assert excess(model, feeds) <= 1


def test_the_gate_is_clamped_above_only():
    """And up on both sides: one expert that hands gate and up through, at -20, 0 and 20 each."""
    weights = {"fc1": np.zeros((1, 2, 2), np.float32), "fc2": np.ones((1, 2, 1), np.float32)}
    weights["fc1"][0] = np.eye(2)
    case = ContribMoE(1, 2, 1, {"k": 1} | GPT_OSS, biases=False)
    x = np.array(list(itertools.product((-20, 0, 20), repeat=2)), np.float32)
    feeds = {"x": x, "logits": np.zeros((len(x), 1), np.float32)}
    gate, up = np.minimum(x[:, 0].astype(np.float64), 7), np.clip(x[:, 1], -7, 7)
    alpha = np.float64(np.float32(1.702))
    expected = gate * sigmoid(alpha * gate) * (up + 1)
    layer_says = layer_reference(found(case.model(weights)), feeds["x"], feeds["logits"])[0]
    np.testing.assert_allclose(layer_says.value[:, 0], expected, rtol=1e-13, atol=1e-13)
    assert excess(case.model(weights), feeds) <= 1


def test_defaults_are_those_of_the_schema():
    """Absent attributes: k 1, relu, not normalised; of swiglu alpha 1, beta 0, no limit."""
    written = {"k": 1, "activation_type": "relu", "normalize_routing_weights": 0, "use_sparse_mixer": 0, "swiglu_fusion": 0}
    written |= {"activation_alpha": 1.0, "activation_beta": 0.0, "swiglu_limit_after_activation": 0}
    bare, explicit = (ContribMoE(attributes=attributes).model() for attributes in ({}, written))
    assert found(bare).router.spec == found(explicit).router.spec == RouterSpec(k=1)
    assert found(bare).activation == found(explicit).activation == Activation("relu")
    assert excess(bare, ContribMoE().feeds(5)) <= 1

    case = ContribMoE(attributes=SWIGLU)
    assert found(case.model()).activation == Activation("silu") and excess(case.model(), case.feeds(5)) <= 1
    limited = ContribMoE(attributes=SWIGLU | {"swiglu_limit": 0.0})
    assert found(limited.model()).activation == Activation("swiglu_oai", 1.0, 0.0, 0.0)
    infinite = ContribMoE(attributes=SWIGLU | {"swiglu_limit": float("inf")})
    assert found(infinite.model()).activation == Activation("silu")
    assert excess(infinite.model(), infinite.feeds(5)) <= 1


def test_a_constant_is_carried():
    changed = ContribMoE(attributes=GPT_OSS | {"activation_alpha": 1.703, "swiglu_limit": 6.5}).model()
    activation = found(changed).activation
    assert (activation.alpha, activation.limit) == (np.float32(1.703), 6.5)


def test_the_layer():
    case = ContribMoE(attributes=GPT_OSS | {"k": 2, "normalize_routing_weights": 1})
    model = case.model()
    layer = found(model)
    assert (layer.num_experts, layer.hidden_size, layer.intermediate_size, layer.k) == (4, 6, 5, 2)
    assert (layer.x.name, layer.router.logits.name, layer.output.name) == ("x", "logits", "y")
    assert layer.router.spec == RouterSpec(k=2, score="softmax", normalize=True) and layer.router.bias is None
    assert (layer.ids, layer.weights, layer.missing, layer.layout) == (None, None, [], "[N, K]")
    assert [node.op_type for node in layer.nodes] == ["MoE"]
    # The weights' bytes stay as they are.
    names = {linear.matrix.tensor.name for _, linears in layer.roles() for linear in linears}
    assert names == {"fc1", "fc2"}
    gate, up = layer.experts[3].gate, layer.experts[3].up
    assert (gate.matrix.strides, up.matrix.offset - gate.matrix.offset) == ((1, 12), 6)
    assert (gate.bias.stride, up.bias.offset - gate.bias.offset) == (2, 1)


# ---- where the CPU kernel refuses: the schema's words


ARRANGED = {
    "interleaved": lambda w: (w["fc1"][:, 0::2], w["fc1"][:, 1::2], w["fc1_bias"][:, 0::2], w["fc1_bias"][:, 1::2]),
    "concatenated": lambda w: (w["fc1"][:, :5], w["fc1"][:, 5:], w["fc1_bias"][:, :5], w["fc1_bias"][:, 5:]),
    "separate": lambda w: (w["fc1"], w["fc3"], w["fc1_bias"], w["fc3_bias"]),
}


@pytest.mark.parametrize(
    ("activation", "fusion", "arranged"),
    (
        ("swiglu", 0, "separate"),
        ("swiglu", 1, "interleaved"),
        ("swiglu", 2, "concatenated"),
        ("geglu", 1, "interleaved"),
        ("geglu", 2, "concatenated"),
    ),
)
def test_gate_and_up_in_every_arrangement(activation, fusion, arranged):
    case = ContribMoE(attributes={"activation_type": activation, "swiglu_fusion": fusion})
    layer = found(case.model())
    weights, views = case.weights(), layer_weights(layer)
    gate, up, gate_bias, up_bias = ARRANGED[arranged](weights)
    np.testing.assert_array_equal(views.matrices["gate"], gate.transpose(0, 2, 1))
    np.testing.assert_array_equal(views.matrices["up"], up.transpose(0, 2, 1))
    np.testing.assert_array_equal(views.matrices["down"], weights["fc2"].transpose(0, 2, 1))
    np.testing.assert_array_equal(views.biases["gate"], gate_bias)
    np.testing.assert_array_equal(views.biases["up"], up_bias)
    np.testing.assert_array_equal(views.biases["down"], weights["fc2_bias"])
    assert layer.activation.name == {"swiglu": "silu", "geglu": "gelu_tanh"}[activation]


def test_bfloat16_weights():
    case = ContribMoE(attributes=SWIGLU)
    model = case.model()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, onnx.TensorProto.BFLOAT16, array.shape, array.reshape(-1)))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    assert found(model).dtype == ir.DataType.BFLOAT16


# ---- routers that are written around the operator's softmax


def test_a_sigmoid_router_as_logarithms():
    """The builder of onnxruntime-genai (LFM2) hands over log(sigmoid) of the chosen experts, and -10000 for all others; the
    softmax, normalised, gives back sigmoid_i / sum. Where the sigmoid underflows, -inf lies below the filler."""
    experts, k = 32, 4
    case = ContribMoE(experts, attributes=SWIGLU | {"k": k, "normalize_routing_weights": 1})
    random = np.random.default_rng(5)
    tokens = 6
    chosen = np.stack([random.permutation(experts)[:k] for _ in range(tokens)])
    scores = sigmoid(random.standard_normal((tokens, k)))
    logits = np.full((tokens, experts), -1e4, np.float32)
    with np.errstate(divide="ignore"):
        scores[3, 1] = 0.0
        np.put_along_axis(logits, chosen, np.log(scores).astype(np.float32), axis=1)
    assert np.isneginf(logits[3]).sum() == 1
    feeds = {"x": case.feeds(tokens)["x"], "logits": logits}
    model = case.model()

    layer = found(model)
    expected, _ = layer_reference(layer, feeds["x"], logits)
    y = kernel(model, feeds)
    assert np.isfinite(y).all()
    # All fillers are equal and weigh nothing, so that it does not matter which of them is taken for the missing one.
    assert (np.abs(y - expected.value) <= expected.error).all()
    by_hand = scores / scores.sum(axis=1, keepdims=True)
    for token in range(tokens):
        each = np.where(np.eye(experts), 0, -1e4)
        answers = layer_reference(layer, np.repeat(feeds["x"][[token]], experts, axis=0), each)[0]
        total = by_hand[token] @ answers.value[chosen[token]]
        np.testing.assert_allclose(y[token], total, rtol=1e-5, atol=1e-5)


def test_experts_that_weigh_nothing_are_not_asked():
    """An expert of weight 0 with Inf among its weights."""
    case = ContribMoE(attributes={"k": 4, "activation_type": "identity"}, biases=False)
    weights = case.weights()
    weights["fc1"][3] = np.inf
    feeds = {"x": case.feeds(1)["x"], "logits": np.array([[0, -1e4, -1e4, -1e4]], np.float32)}
    assert np.isfinite(kernel(case.model(weights), feeds)).all()


def test_equal_scores():
    """The kernel takes the higher id first, the router that is recognised the lower: known, and only with equal logits."""
    case = ContribMoE(attributes={"k": 1, "activation_type": "identity"}, biases=False)
    weights = case.weights()
    feeds = {"x": case.feeds(1)["x"], "logits": np.zeros((1, 4), np.float32)}
    answers = np.einsum("h,eih,eji->ej", feeds["x"][0], weights["fc1"], weights["fc2"]) / 4
    np.testing.assert_allclose(kernel(case.model(), feeds)[0], answers[3], rtol=1e-5)
    found_value = layer_reference(found(case.model()), feeds["x"], feeds["logits"])[0].value
    np.testing.assert_allclose(found_value[0], answers[0], rtol=1e-5)


# ---- refusals


REFUSED_ATTRIBUTES = (
    ({"use_sparse_mixer": 1, "k": 2}, "'use_sparse_mixer'"),
    ({"use_sparse_mixer": 1, "k": 2} | SWIGLU, "'use_sparse_mixer'"),
    (GPT_OSS | {"swiglu_limit_after_activation": 1}, "'swiglu_limit_after_activation'"),
    ({"normalize_routing_weights": 2}, "'normalize_routing_weights' is 2, expected 0 or 1"),
    ({"k": 0}, "'k' is 0, expected at least 1"),
    ({"k": 5}, "'k' is 5, and there are 4 experts"),
    ({"k": 2.0}, "'k' is not a constant of type INT"),
    ({"activation_type": 1}, "'activation_type' is not a constant of type STRING"),
    ({"activation_type": "relu2"}, "'activation_type' is 'relu2'"),
    ({"activation_type": "SwiGLU"}, "'activation_type' is 'SwiGLU'"),
    ({"activation_type": "silu", "swiglu_fusion": 1}, "'swiglu_fusion' is 1, and 'silu' has no use for it"),
    ({"activation_type": "silu", "activation_alpha": 1.702}, "'activation_alpha'"),
    ({"activation_type": "gelu", "activation_beta": 1.0}, "'activation_beta' is 1.0"),
    ({"activation_type": "relu", "swiglu_limit": 7.0}, "'swiglu_limit' is 7.0"),
    ({"activation_type": "geglu", "swiglu_fusion": 1, "activation_beta": 1.0}, "'activation_beta' is 1.0"),
    ({"activation_type": "geglu"}, "'swiglu_fusion' is 0, expected 1 or 2 with 'geglu'"),
    (SWIGLU | {"swiglu_fusion": 3}, "'swiglu_fusion' is 3, expected 0, 1 or 2"),
    (SWIGLU | {"swiglu_limit": -1.0}, "'swiglu_limit' is -1.0"),
    (SWIGLU | {"swiglu_limit": float("nan")}, "'swiglu_limit' is nan"),
    (SWIGLU | {"activation_alpha": float("inf")}, "'activation_alpha' is inf"),
    (SWIGLU | {"activation_beta": float("nan")}, "'activation_beta' is nan"),
    ({"quant_type": "int"}, "'quant_type' is not known"),
)


@pytest.mark.parametrize(("attributes", "words"), REFUSED_ATTRIBUTES, ids=[words for _, words in REFUSED_ATTRIBUTES])
def test_refused_attributes(attributes, words):
    assert words in refusal(ContribMoE(attributes=attributes).model())


def test_every_attribute_of_the_schema_is_mapped_or_refused():
    """A new ONNX Runtime may have more of them than are known here: they are refused by name until somebody looks."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    (schema,) = [s for s in get_all_operator_schema() if (s.domain, s.name) == ("com.microsoft", "MoE")]
    changed = {"k": 5, "activation_type": "relu2", "swiglu_fusion": 7, "normalize_routing_weights": 3}
    for name in schema.attributes:
        is_float = name in ("activation_alpha", "activation_beta", "swiglu_limit")
        value = changed.get(name, 0.25 if is_float else 1)
        assert repr(name) in refusal(ContribMoE(attributes={name: value}).model())


def test_sparse_mixer_is_ignored_by_the_kernel():
    """Why it is refused: thresholded softmaxes would not give these weights."""
    case = ContribMoE(attributes={"k": 2})
    mixed = ContribMoE(attributes={"k": 2, "use_sparse_mixer": 1})
    feeds = case.feeds(17)
    np.testing.assert_array_equal(kernel(case.model(), feeds), kernel(mixed.model(), feeds))


@pytest.mark.parametrize("fused", (False, True))
def test_the_layout_of_an_older_schema(fused):
    """[E, H, I] and [E, I, H]: the kernel accepts the shapes and reads other numbers than the writer meant."""
    case = ContribMoE(attributes=SWIGLU if fused else {}, biases=False, inter=6 if fused else 5)
    weights = {name: np.ascontiguousarray(array.transpose(0, 2, 1)) for name, array in case.weights().items()}
    assert "layout of an older schema" in refusal(case.model(weights))
    feeds = case.feeds(3)
    assert np.abs(kernel(case.model(weights), feeds) - kernel(case.model(), feeds)).max() > 0.1


def reshaped(name, shape):
    def change(weights):
        weights[name] = np.resize(weights[name], shape)

    return change


def removed(name):
    return lambda weights: weights.pop(name)


def in_half(name):
    def change(weights):
        weights[name] = weights[name].astype(np.float16)

    return change


REFUSED_WEIGHTS = (
    (reshaped("fc1", (4, 11, 6)), SWIGLU, "input 2 (fc1_experts_weights) has shape [4, 11, 6], expected [4, 10, 6]"),
    (reshaped("fc1", (4, 10, 7)), SWIGLU, "input 2 (fc1_experts_weights) has shape [4, 10, 7], expected [4, 10, 6]"),
    (reshaped("fc1", (3, 10, 6)), SWIGLU, "expected [4, 10, 6]"),
    (reshaped("fc1", (4, 60)), SWIGLU, "has shape [4, 60], expected [4, 10, 6]"),
    (reshaped("fc2", (4, 30)), SWIGLU, "input 4 (fc2_experts_weights) has shape [4, 30], expected [experts, hidden, interm"),
    (reshaped("fc2", (4, 7, 5)), SWIGLU, "input 4 (fc2_experts_weights) has shape [4, 7, 5], expected [4, 6, 5]"),
    (reshaped("fc2", (4, 6, 0)), SWIGLU, "input 4 (fc2_experts_weights) has shape [4, 6, 0]"),
    (reshaped("fc1_bias", (4, 5)), SWIGLU, "input 3 (fc1_experts_bias) has shape [4, 5], expected [4, 10]"),
    (reshaped("fc2_bias", (4, 1, 6)), SWIGLU, "input 5 (fc2_experts_bias) has shape [4, 1, 6], expected [4, 6]"),
    (reshaped("fc3_bias", (4, 6)), SEPARATE, "input 7 (fc3_experts_bias) has shape [4, 6], expected [4, 5]"),
    (removed("fc3"), SEPARATE, "input 6 (fc3_experts_weights) is missing"),
    (removed("fc1"), SWIGLU, "input 2 (fc1_experts_weights) is missing"),
    (removed("fc2"), SWIGLU, "input 4 (fc2_experts_weights) is missing"),
    (in_half("fc2"), SWIGLU, "input 4 (fc2_experts_weights) is of type FLOAT16, unlike fc1_experts_weights"),
    (in_half("fc1_bias"), SWIGLU, "input 3 (fc1_experts_bias) is of type FLOAT16, unlike fc1_experts_weights"),
    (lambda w: w.update({n: a.astype(np.float64) for n, a in w.items()}), SWIGLU, "is of type DOUBLE"),
    (lambda w: w.update(fc3=w["fc1"], fc3_bias=w["fc1_bias"]), SILU, "input 6 (fc3_experts_weights) is given"),
    (lambda w: w.update(fc3_bias=w["fc1_bias"]), SILU, "input 7 (fc3_experts_bias) is given"),
)


@pytest.mark.parametrize(("change", "attributes", "words"), REFUSED_WEIGHTS, ids=[words for *_, words in REFUSED_WEIGHTS])
def test_refused_weights(change, attributes, words):
    case = ContribMoE(attributes=attributes)
    weights = case.weights()
    change(weights)
    assert words in refusal(case.model(weights))


def test_weights_must_be_constants():
    model = ContribMoE().model()
    model.graph.input.append(helper.make_tensor_value_info("fc1", onnx.TensorProto.FLOAT, [4, 5, 6]))
    assert "input 2 (fc1_experts_weights) is an input of the model" in refusal(model)

    model = ContribMoE().model()
    model.graph.node.insert(0, helper.make_node("Neg", ["fc2"], ["computed"], "negated"))
    model.graph.node[1].input[4] = "computed"
    assert "input 4 (fc2_experts_weights) is computed by Neg 'negated'" in refusal(model)


def test_inputs_that_do_not_fit():
    model = ContribMoE().model()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 3
    assert "input 1 (router_probs) has 3 columns, and there are 4 experts" in refusal(model)
    model.graph.input[1].type.tensor_type.shape.dim.add().dim_value = 4
    assert "input 1 (router_probs) has rank 3, expected 2" in refusal(model)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 8
    assert "expected [4, 5, 8]" in refusal(model)
    for _ in range(2):
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 6
    assert "input 0 (input) has rank 4, expected 2 or 3" in refusal(model)

    model = ContribMoE().model()
    model.graph.node[0].input.extend(["", "", "x"])
    assert "input 8 is not known" in refusal(model)


def test_shapes_that_nobody_tells():
    """Without them the tensors decide; a width that is not theirs fails when the model runs."""
    model = ContribMoE().model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    assert isinstance(found(model), MoELayer)


@pytest.mark.parametrize(
    ("attributes", "words"),
    (
        ({}, "quantised weights (int4, block 32): recognised, not run yet"),
        ({"expert_weight_bits": 8, "block_size": 0}, "(int8, one scale for each row)"),
        ({"fc1_expert_weight_bits": 2, "block_size": 64}, "(int2 and int4, block 64)"),
        ({"quant_type": "nvfp4", "block_size": 16}, "(nvfp4, block 16)"),
    ),
)
def test_quantised_weights_are_recognised(attributes, words):
    model = quantised(**attributes)
    layer = found(model)
    assert words in refusal(model)
    assert (layer.experts_found, layer.num_experts, layer.k) == (4, 4, 2)


def test_the_model_for_quantised_weights_runs():
    feeds = ContribMoE(hidden=32).feeds(3)
    assert np.isfinite(kernel(quantised(), feeds)).all()


def test_a_refusal_counts_the_experts():
    layer = found(ContribMoE(attributes={"use_sparse_mixer": 1, "k": 2}).model())
    assert (layer.experts_found, layer.num_experts, layer.k) == (4, 4, 2)


def test_other_domains_are_not_ours():
    model = ContribMoE().model()
    model.graph.node[0].domain = "somebody.else"
    assert contrib_moe.find(ir.from_proto(model).graph) == []
