#include "ort/attention_inputs.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "ort/input_tensor.h"
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
    "k_scale",       "v_scale",   "q_norm_weight", "k_norm_weight", "query_seqlens",
    "attention_mask"};

[[noreturn]] void refuse(size_t input, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(attention_input_name(input) + ": expected " + expected + ", got " + got);
}

class Reader {
 public:
  Reader(const Ort::KernelContext& context, const AttentionRule& rule) : rule_(rule) {
    for (size_t input = 0; input < kAttentionInputs; ++input) tensors_[input] = read_input(context, input);
  }

  AttentionTensors read() {
    refuse_what_is_not_supported();
    read_tokens();
    read_past();
    read_lengths();
    read_mask();
    in_.query_norm = norm_of(kQNormWeight, rule_.heads);
    in_.key_norm = norm_of(kKNormWeight, rule_.kv_heads);
    read_rotary();
    read_positions();
    read_bias();
    read_sink();
    AttentionTensors all;
    all.inputs = in_;
    for (size_t input = 0; input < kAttentionInputs; ++input) all.buffers[input] = buffer_of(tensors_[input]);
    return all;
  }

 private:
  const InputTensor& tensor(size_t input) const { return tensors_[input]; }
  // Of the type of the query.
  const InputTensor& alike(size_t input) const {
    const InputTensor& t = tensor(input);
    if (t.present && floating_type(t.type, attention_input_name(input)) != in_.type)
      refuse(input, std::string(name_of(in_.type)) + " as the query", type_name(t.type));
    return t;
  }
  void expect_shape(size_t input, const InputTensor& t, const Shape& shape) const {
    if (t.shape != shape) refuse(input, "shape " + describe(shape), describe(t.shape));
  }
  void expect_type(size_t input, const InputTensor& t, ONNXTensorElementDataType type) const {
    if (t.type != type) refuse(input, type_name(type), type_name(t.type));
  }
  void expect_both(size_t input, const InputTensor& a, size_t other, const InputTensor& b) const {
    if (a.present == b.present) return;
    const size_t given = a.present ? input : other, absent = a.present ? other : input;
    refuse(absent, "a tensor, since " + attention_input_name(given) + " is given", "none");
  }
  static int64_t signed_(size_t x) { return static_cast<int64_t>(x); }

  void refuse_what_is_not_supported() const {
    for (size_t input : {kKScale, kVScale, kQuerySeqlens})
      if (tensor(input).present) refuse(input, "none: it is not supported", "a tensor");
  }

  // Rank 3: (batch, tokens, heads × size), rank 4: (batch, heads, tokens, size).
  void expect_tokens(size_t input, const InputTensor& t, size_t heads, const char* what) const {
    const size_t rank = t.shape.size();
    if (rank != 3 && rank != 4)
      refuse(input, "rank 3 (batch, tokens, width) or 4 (batch, " + std::string(what) + ", tokens, head size)",
             "shape " + describe(t.shape));
    if (rank == 4 && t.dim(1) != heads)
      refuse(input, to_string(heads) + " heads (" + what + ") in dimension 1", "shape " + describe(t.shape));
    const size_t width = t.shape.back() * (rank == 4 ? heads : 1);
    if (width == 0 || width % heads)
      refuse(input, rank == 4 ? "a head size of at least 1"
                              : "a width that is a multiple of " + to_string(heads) + " (" + what + ")",
             "shape " + describe(t.shape));
  }
  static size_t head_size(const InputTensor& t, size_t heads) { return t.shape.size() == 4 ? t.dim(3) : t.dim(2) / heads; }
  static size_t tokens_of(const InputTensor& t) { return t.shape.size() == 4 ? t.dim(2) : t.dim(1); }
  static operators::TokenRows rows_of_heads(const InputTensor& t, size_t heads) {
    if (t.shape.size() == 3) return {t.data, t.dim(1) * t.dim(2), t.dim(2), t.dim(2) / heads};
    return {t.data, heads * t.dim(2) * t.dim(3), t.dim(3), t.dim(2) * t.dim(3)};
  }
  // Of this rank.
  Shape shape_of_tokens(size_t rank, size_t heads, size_t size) const {
    const int64_t batch = signed_(in_.batch), tokens = signed_(in_.queries);
    if (rank == 4) return {batch, signed_(heads), tokens, signed_(size)};
    return {batch, tokens, signed_(heads * size)};
  }

  void read_tokens() {
    const InputTensor& query = tensor(kQuery);
    in_.type = floating_type(query.type, attention_input_name(kQuery));
    const InputTensor &key = alike(kKey), &value = alike(kValue);
    expect_both(kKey, key, kValue, value);
    if (!key.present) return read_packed(query);
    expect_tokens(kQuery, query, rule_.heads, "num_heads");
    in_.batch = query.dim(0);
    in_.queries = tokens_of(query);
    in_.keys.size = head_size(query, rule_.heads);
    in_.query = rows_of_heads(query, rule_.heads);
    in_.key = read_kv(kKey, key, in_.keys.size);
    expect_tokens(kValue, value, rule_.kv_heads, "kv_num_heads");
    in_.values.size = head_size(value, rule_.kv_heads);
    in_.value = read_kv(kValue, value, in_.values.size);
  }

  operators::TokenRows read_kv(size_t input, const InputTensor& t, size_t size) const {
    const size_t rank = t.shape.size() == 4 ? 4 : 3;
    expect_shape(input, t, shape_of_tokens(rank, rule_.kv_heads, size));
    return rows_of_heads(t, rule_.kv_heads);
  }

  // Query heads, then those of keys, then those of values.
  void read_packed(const InputTensor& query) {
    const size_t heads = rule_.heads, all = heads + 2 * rule_.kv_heads;
    if (query.shape.size() != 3)
      refuse(kQuery, "rank 3 (batch, tokens, width), key being left out", "shape " + describe(query.shape));
    expect_tokens(kQuery, query, all, "num_heads + 2 kv_num_heads, key being left out");
    in_.batch = query.dim(0);
    in_.queries = query.dim(1);
    const size_t size = head_size(query, all);
    in_.keys.size = in_.values.size = size;
    in_.query = in_.key = in_.value = rows_of_heads(query, all);
    const uint8_t* const data = static_cast<const uint8_t*>(query.data);
    in_.key.data = data + heads * size * size_of(in_.type);
    in_.value.data = data + (heads + rule_.kv_heads) * size * size_of(in_.type);
  }

  void read_past() {
    const InputTensor &keys = alike(kPastKey), &values = alike(kPastValue);
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
  }

  void read_lengths() {
    const InputTensor& lengths = tensor(kSeqlensK);
    if (lengths.present) {
      expect_type(kSeqlensK, lengths, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
      if (lengths.shape != Shape{signed_(in_.batch), 1}) expect_shape(kSeqlensK, lengths, {signed_(in_.batch)});
      in_.seqlens_k = static_cast<const int32_t*>(lengths.data);
    }
    in_.total_length = total_length();
    in_.keys.present_length = in_.values.present_length = std::max(in_.keys.past_length, in_.total_length);
  }

  size_t total_length() {
    const InputTensor &total = tensor(kTotalSequenceLength), &mask = tensor(kAttentionMask);
    if (!total.present) {
      in_.total_is_mask_width = mask.present;
      if (mask.present && mask.shape.size() != 2)
        refuse(kAttentionMask, "rank 2 (batch, total_sequence_length)", "shape " + describe(mask.shape));
      return mask.present ? mask.dim(1) : in_.keys.past_length + in_.queries;
    }
    const bool wide = total.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    if (!wide && total.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
      refuse(kTotalSequenceLength, "int32 or int64", type_name(total.type));
    if (!total.shape.empty()) expect_shape(kTotalSequenceLength, total, {1});
    const int64_t length = wide ? *static_cast<const int64_t*>(total.data) : *static_cast<const int32_t*>(total.data);
    if (length < 0 || length > INT32_MAX)
      refuse(kTotalSequenceLength, length < 0 ? "at least 0" : "less than 2^31", to_string(length));
    return static_cast<size_t>(length);
  }

  void read_mask() {
    const InputTensor& mask = tensor(kAttentionMask);
    if (!mask.present) return;
    switch (mask.type) {
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: in_.mask_bytes = 1; break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: in_.mask_bytes = 4; break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: in_.mask_bytes = 8; break;
      default: refuse(kAttentionMask, "bool, int32 or int64", type_name(mask.type));
    }
    expect_shape(kAttentionMask, mask, {signed_(in_.batch), signed_(in_.total_length)});
    in_.mask = mask.data;
  }

  // Over each head, or over all heads of a token.
  operators::HeadNorm norm_of(size_t input, size_t heads) const {
    const InputTensor& t = tensor(input);
    if (!t.present) return {};
    const DataType type = floating_type(t.type, attention_input_name(input));
    if (type != in_.type && type != DataType::kF32)
      refuse(input, in_.type == DataType::kF32 ? "float" : std::string(name_of(in_.type)) + " as the query, or float",
             type_name(t.type));
    const size_t size = in_.keys.size;
    const Shape each = {signed_(size)}, all = {signed_(heads * size)};
    if (t.shape != each && t.shape != all)
      refuse(input, "shape " + describe(each) + " or " + describe(all), describe(t.shape));
    return {t.data, type, t.shape != each};
  }

  void read_rotary() {
    const InputTensor &cos = tensor(kCosCache), &sin = tensor(kSinCache);
    for (size_t input : {kCosCache, kSinCache}) {
      const bool present = tensor(input).present;
      if (rule_.rotary && !present) refuse(input, "a tensor, since do_rotary is 1", "none");
      if (!rule_.rotary && present) refuse(input, "none, since do_rotary is 0", "a tensor");
    }
    if (!rule_.rotary) return;
    const bool per_token = cos.shape.size() == 3;
    const bool fits = per_token ? (cos.shape[0] == 1 || cos.dim(0) == in_.batch) && cos.dim(1) == in_.queries
                                : cos.shape.size() == 2;
    if (!fits || cos.shape.back() == 0 || 2 * static_cast<size_t>(cos.shape.back()) > in_.keys.size) {
      const std::string width = "1 to " + to_string(in_.keys.size / 2) + ")";
      refuse(kCosCache, "shape (positions, " + width + " or (" + to_string(in_.batch) + " or 1, " + to_string(in_.queries) +
             ", " + width, describe(cos.shape));
    }
    expect_shape(kSinCache, sin, cos.shape);
    in_.rotary.type = floating_type(cos.type, attention_input_name(kCosCache));
    expect_type(kSinCache, sin, cos.type);
    in_.rotary.cos = cos.data;
    in_.rotary.sin = sin.data;
    in_.rotary.positions = per_token ? 0 : cos.dim(0);
    in_.rotary.width = static_cast<size_t>(cos.shape.back());
    in_.rotary.per_token = per_token;
    in_.rotary.batch_rows = per_token && cos.shape[0] != 1 ? in_.queries : 0;
    in_.rotary.interleaved = rule_.rotary_interleaved;
  }

  void read_positions() {
    const InputTensor& t = tensor(kPositionIds);
    if (!t.present) return;
    if (in_.rotary.per_token)
      refuse(kPositionIds, "none, since input 7 (cos_cache) has a row for each new token", "a tensor");
    expect_type(kPositionIds, t, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
    expect_shape(kPositionIds, t, {signed_(in_.batch), signed_(in_.queries)});
    in_.position_ids = static_cast<const int64_t*>(t.data);
  }

  void read_bias() {
    const InputTensor& t = tensor(kAttentionBias);
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
    const InputTensor& t = tensor(kHeadSink);
    if (!t.present) return;
    in_.sink_type = floating_type(t.type, attention_input_name(kHeadSink));
    expect_shape(kHeadSink, t, {signed_(rule_.heads)});
    in_.sink = t.data;
  }

  const AttentionRule& rule_;
  std::array<InputTensor, kAttentionInputs> tensors_;
  AttentionInputs in_ = {};
};

}  // namespace

std::string attention_input_name(size_t input) { return "input " + to_string(input) + " (" + kNames[input] + ")"; }

AttentionTensors read_attention_inputs(const Ort::KernelContext& context, const AttentionRule& rule) {
  return Reader(context, rule).read();
}

}  // namespace ort_hina::ort
