#include "ort/attention_inputs.h"

#include <algorithm>
#include <stdexcept>

#include "ort/tensors.h"

namespace ort_hina::ort {
namespace {

using operators::AttentionInputs;
using operators::AttentionRule;
using std::to_string;
using Shape = std::vector<int64_t>;

constexpr const char* kNames[kAttentionInputs] = {
    "query",         "key",       "value",     "past_key",     "past_value",     "seqlens_k",
    "total_sequence_length", "cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink",
    "k_scale",       "v_scale",   "q_norm_weight", "k_norm_weight", "query_seqlens"};

[[noreturn]] void refuse(size_t input, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(attention_input_name(input) + ": expected " + expected + ", got " + got);
}

// A tensor of the call, or nothing where the node leaves it out.
struct Tensor {
  const void* data = nullptr;
  Shape shape;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  bool present = false;

  size_t dim(size_t i) const { return static_cast<size_t>(shape[i]); }
};

class Reader {
 public:
  Reader(const Ort::KernelContext& context, const AttentionRule& rule) : context_(context), rule_(rule) {}

  AttentionInputs read() {
    refuse_what_is_not_supported();
    read_tokens();
    read_lengths();
    read_caches();
    read_rotary();
    read_positions();
    read_bias();
    read_sink();
    return in_;
  }

 private:
  Tensor tensor(size_t input) const {
    Tensor t;
    if (input >= context_.GetInputCount()) return t;
    const Ort::ConstValue value = context_.GetInput(input);
    if (!value) return t;
    const auto info = value.GetTensorTypeAndShapeInfo();
    t.shape = info.GetShape();
    t.type = info.GetElementType();
    t.data = value.GetTensorRawData();
    t.present = true;
    return t;
  }
  // Of the type of the query.
  Tensor alike(size_t input) const {
    const Tensor t = tensor(input);
    if (t.present && floating_type(t.type, attention_input_name(input)) != in_.type)
      refuse(input, std::string(name_of(in_.type)) + " as the query", type_name(t.type));
    return t;
  }
  void expect_shape(size_t input, const Tensor& t, const Shape& shape) const {
    if (t.shape != shape) refuse(input, "shape " + describe(shape), describe(t.shape));
  }
  void expect_type(size_t input, const Tensor& t, ONNXTensorElementDataType type) const {
    if (t.type != type) refuse(input, type_name(type), type_name(t.type));
  }
  void expect_both(size_t input, const Tensor& a, size_t other, const Tensor& b) const {
    if (a.present == b.present) return;
    const size_t given = a.present ? input : other, absent = a.present ? other : input;
    refuse(absent, "a tensor, since " + attention_input_name(given) + " is given", "none");
  }
  static int64_t signed_(size_t x) { return static_cast<int64_t>(x); }

  void refuse_what_is_not_supported() const {
    for (size_t input = kKScale; input < kAttentionInputs; ++input)
      if (tensor(input).present) refuse(input, "none: it is not supported", "a tensor");
  }

  void read_tokens() {
    const Tensor query = tensor(kQuery);
    in_.type = floating_type(query.type, attention_input_name(kQuery));
    if (query.shape.size() != 3) refuse(kQuery, "rank 3 (batch, tokens, width)", "shape " + describe(query.shape));
    in_.batch = query.dim(0);
    in_.queries = query.dim(1);
    const Tensor key = alike(kKey), value = alike(kValue);
    expect_both(kKey, key, kValue, value);
    if (!key.present) return read_packed(query);
    in_.keys.size = head_size(kQuery, query, rule_.heads, "num_heads");
    in_.query = {query.data, query.dim(2)};
    expect_shape(kKey, key, {query.shape[0], query.shape[1], signed_(rule_.kv_heads * in_.keys.size)});
    if (value.shape.size() != 3 || value.shape[0] != query.shape[0] || value.shape[1] != query.shape[1])
      refuse(kValue, "shape (" + to_string(in_.batch) + ", " + to_string(in_.queries) + ", kv_num_heads × head size)",
             describe(value.shape));
    in_.values.size = head_size(kValue, value, rule_.kv_heads, "kv_num_heads");
    in_.key = {key.data, key.dim(2)};
    in_.value = {value.data, value.dim(2)};
  }

  size_t head_size(size_t input, const Tensor& t, size_t heads, const char* what) const {
    const size_t width = t.dim(2);
    if (width == 0 || width % heads)
      refuse(input, "a width that is a multiple of " + to_string(heads) + " (" + what + ")", "shape " + describe(t.shape));
    return width / heads;
  }

  // Query heads, then those of keys, then those of values.
  void read_packed(const Tensor& query) {
    const size_t heads = rule_.heads, width = query.dim(2);
    const char* const what = "num_heads + 2 kv_num_heads, key being left out";
    const size_t size = head_size(kQuery, query, heads + 2 * rule_.kv_heads, what);
    in_.keys.size = in_.values.size = size;
    const uint8_t* data = static_cast<const uint8_t*>(query.data);
    in_.query = {data, width};
    in_.key = {data + heads * size * size_of(in_.type), width};
    in_.value = {data + (heads + rule_.kv_heads) * size * size_of(in_.type), width};
  }

  void read_lengths() {
    const Tensor lengths = tensor(kSeqlensK), total = tensor(kTotalSequenceLength);
    if (!lengths.present) refuse(kSeqlensK, "a tensor", "none");
    if (!total.present) refuse(kTotalSequenceLength, "a tensor", "none");
    expect_type(kSeqlensK, lengths, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
    expect_type(kTotalSequenceLength, total, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
    if (lengths.shape != Shape{signed_(in_.batch), 1}) expect_shape(kSeqlensK, lengths, {signed_(in_.batch)});
    if (!total.shape.empty()) expect_shape(kTotalSequenceLength, total, {1});
    in_.seqlens_k = static_cast<const int32_t*>(lengths.data);
    const int32_t length = *static_cast<const int32_t*>(total.data);
    if (length < 0) refuse(kTotalSequenceLength, "at least 0", to_string(length));
    in_.total_length = static_cast<size_t>(length);
  }

  void read_caches() {
    const Tensor keys = alike(kPastKey), values = alike(kPastValue);
    expect_both(kPastKey, keys, kPastValue, values);
    size_t past = 0;
    if (keys.present) {
      if (keys.shape.size() != 4)
        refuse(kPastKey, "rank 4 (batch, kv_num_heads, length, head size)", "shape " + describe(keys.shape));
      past = keys.dim(2);
      const Shape lead = {signed_(in_.batch), signed_(rule_.kv_heads), signed_(past)};
      expect_shape(kPastKey, keys, {lead[0], lead[1], lead[2], signed_(in_.keys.size)});
      expect_shape(kPastValue, values, {lead[0], lead[1], lead[2], signed_(in_.values.size)});
    }
    in_.keys.past = keys.data;
    in_.values.past = values.data;
    in_.keys.past_length = in_.values.past_length = past;
    in_.keys.present_length = in_.values.present_length = std::max(past, in_.total_length);
  }

  void read_rotary() {
    const Tensor cos = tensor(kCosCache), sin = tensor(kSinCache);
    for (size_t input : {kCosCache, kSinCache}) {
      const bool present = tensor(input).present;
      if (rule_.rotary && !present) refuse(input, "a tensor, since do_rotary is 1", "none");
      if (!rule_.rotary && present) refuse(input, "none, since do_rotary is 0", "a tensor");
    }
    if (!rule_.rotary) return;
    if (cos.shape.size() != 2 || cos.shape[1] == 0 || 2 * cos.dim(1) > in_.keys.size)
      refuse(kCosCache, "shape (positions, 1 to " + to_string(in_.keys.size / 2) + ")", describe(cos.shape));
    expect_shape(kSinCache, sin, cos.shape);
    in_.rotary.type = floating_type(cos.type, attention_input_name(kCosCache));
    expect_type(kSinCache, sin, cos.type);
    in_.rotary.cos = cos.data;
    in_.rotary.sin = sin.data;
    in_.rotary.positions = cos.dim(0);
    in_.rotary.width = cos.dim(1);
    in_.rotary.interleaved = rule_.rotary_interleaved;
  }

  void read_positions() {
    const Tensor t = tensor(kPositionIds);
    if (!t.present) return;
    expect_type(kPositionIds, t, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
    expect_shape(kPositionIds, t, {signed_(in_.batch), signed_(in_.queries)});
    in_.position_ids = static_cast<const int64_t*>(t.data);
  }

  void read_bias() {
    const Tensor t = tensor(kAttentionBias);
    if (!t.present) return;
    in_.bias_type = floating_type(t.type, attention_input_name(kAttentionBias));
    const int64_t batch = signed_(in_.batch), heads = signed_(rule_.heads), total = signed_(in_.total_length);
    const bool fits = t.shape.size() == 4 && (t.shape[0] == 1 || t.shape[0] == batch) &&
                      (t.shape[1] == 1 || t.shape[1] == heads) && t.shape[2] == signed_(in_.queries) && t.shape[3] == total;
    if (!fits)
      refuse(kAttentionBias, "shape (" + to_string(batch) + " or 1, " + to_string(heads) + " or 1, " +
             to_string(in_.queries) + ", " + to_string(total) + ")", describe(t.shape));
    const size_t plane = in_.queries * in_.total_length;
    in_.bias = t.data;
    in_.bias_head_stride = t.shape[1] == 1 ? 0 : plane;
    in_.bias_batch_stride = t.shape[0] == 1 ? 0 : plane * t.dim(1);
  }

  void read_sink() {
    const Tensor t = tensor(kHeadSink);
    if (!t.present) return;
    in_.sink_type = floating_type(t.type, attention_input_name(kHeadSink));
    expect_shape(kHeadSink, t, {signed_(rule_.heads)});
    in_.sink = t.data;
  }

  const Ort::KernelContext& context_;
  const AttentionRule& rule_;
  AttentionInputs in_ = {};
};

}  // namespace

std::string attention_input_name(size_t input) { return "input " + to_string(input) + " (" + kNames[input] + ")"; }

AttentionInputs read_attention_inputs(const Ort::KernelContext& context, const AttentionRule& rule) {
  return Reader(context, rule).read();
}

}  // namespace ort_hina::ort
