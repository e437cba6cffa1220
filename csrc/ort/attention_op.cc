#include "ort/attention_op.h"

#include <stdexcept>

#include "ort/attention_inputs.h"
#include "ort/attribute_reader.h"
#include "ort/tensors.h"
#include "runtime/cpu.h"

namespace ort_hina::ort {
namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

constexpr char kOperator[] = "GroupQueryAttention";

// com.microsoft's attributes that ask for what is not supported.
void refuse_what_is_not_supported(const AttributeReader& read) {
  for (const char* name : {"qk_output", "sliding_window_cache", "kv_cache_bit_width"})
    if (const int64_t value = read.integer(name, 0))
      fail("attribute " + std::string(name) + ": expected 0, others are not supported, got " + to_string(value));
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    const std::string value = read.text(name, "NONE");
    if (value != "NONE")
      fail("attribute " + std::string(name) + ": expected NONE, others are not supported, got '" + value + "'");
  }
}

operators::AttentionAttributes read_attributes(const OrtKernelInfo* info) {
  const AttributeReader read(info);
  operators::AttentionAttributes a;
  a.num_heads = read.integer("num_heads");
  a.kv_num_heads = read.integer("kv_num_heads");
  a.scale = read.real("scale", a.scale);
  a.softcap = read.real("softcap", a.softcap);
  a.local_window_size = read.integer("local_window_size", a.local_window_size);
  a.causal = read.integer("causal", a.causal);
  a.do_rotary = read.integer("do_rotary", a.do_rotary);
  a.rotary_interleaved = read.integer("rotary_interleaved", a.rotary_interleaved);
  a.smooth_softmax = read.integer("smooth_softmax", a.smooth_softmax);
  a.qk_norm_epsilon = read.real("qk_norm_epsilon", a.qk_norm_epsilon);
  a.q_norm_epsilon = read.real("q_norm_epsilon", a.qk_norm_epsilon);
  a.k_norm_epsilon = read.real("k_norm_epsilon", a.qk_norm_epsilon);
  refuse_what_is_not_supported(read);
  return a;
}

// Bytes of the call's memory, and what messages call them.
struct Region {
  std::string name;
  const uint8_t* begin;
  size_t bytes;

  bool overlaps(const Region& other) const {
    return begin && other.begin && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

// Present caches may lie where their own past lies, if both have one shape. Anything else that they share would be
// overwritten while it is read.
void check_buffers(const operators::AttentionInputs& in, size_t heads) {
  const auto region = [&](const char* name, const void* data, size_t length, size_t size) {
    return Region{name, static_cast<const uint8_t*>(data), in.batch * heads * length * size * size_of(in.type)};
  };
  const auto past = [&](const char* name, const operators::Cache& c) {
    return region(name, c.past, c.past_length, c.size);
  };
  const auto present = [&](const char* name, const operators::Cache& c) {
    return region(name, c.present, c.present_length, c.size);
  };
  const Region pasts[] = {past("input 3 (past_key)", in.keys), past("input 4 (past_value)", in.values)};
  const Region presents[] = {present("output 1 (present_key)", in.keys), present("output 2 (present_value)", in.values)};
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 2; ++j) {
      if (!presents[i].overlaps(pasts[j])) continue;
      if (i == j && presents[i].begin == pasts[j].begin && presents[i].bytes == pasts[j].bytes) continue;
      fail(presents[i].name + ": expected a buffer of its own, or that of " + pasts[i].name + " if both have " +
           to_string(in.keys.present_length) + " rows; got one that overlaps " + pasts[j].name + ", which has " +
           to_string(in.keys.past_length) + " rows");
    }
  if (presents[0].overlaps(presents[1]))
    fail(presents[1].name + ": expected a buffer of its own, got one that overlaps " + presents[0].name);
}

}  // namespace

AttentionKernel::AttentionKernel(const OrtKernelInfo* info, const Settings& settings)
    : node_(node_name(kOperator, info)), threads_(settings.threads) {
  attention_ = std::make_unique<operators::Attention>(read_attributes(info), runtime::choose_isa().isa);
}

OrtStatusPtr AttentionKernel::ComputeV2(OrtKernelContext* context) {
  return guarded(node_, [&] { compute(context); });
}

void AttentionKernel::compute(OrtKernelContext* raw) const {
  const Ort::KernelContext context(raw);
  const operators::AttentionRule& rule = attention_->rule();
  operators::AttentionInputs in = read_attention_inputs(context, rule);
  attention_->check(in);

  const int64_t batch = static_cast<int64_t>(in.batch), queries = static_cast<int64_t>(in.queries);
  const int64_t heads = static_cast<int64_t>(rule.kv_heads), length = static_cast<int64_t>(in.keys.present_length);
  const int64_t key_size = static_cast<int64_t>(in.keys.size), value_size = static_cast<int64_t>(in.values.size);
  const int64_t width = static_cast<int64_t>(rule.heads) * value_size;
  in.output = context.GetOutput(0, {batch, queries, width}).GetTensorMutableRawData();
  in.keys.present = context.GetOutput(1, {batch, heads, length, key_size}).GetTensorMutableRawData();
  in.values.present = context.GetOutput(2, {batch, heads, length, value_size}).GetTensorMutableRawData();
  check_buffers(in, rule.kv_heads);
  attention_->run(in, {raw, parallel_for, threads_});
}

OrtStatusPtr AttentionOp::CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
  return guarded(node_name(kOperator, info), [&] { *kernel = new AttentionKernel(info, settings_); });
}

size_t AttentionOp::GetInputTypeCount() const { return kAttentionInputs; }

ONNXTensorElementDataType AttentionOp::GetInputType(size_t i) const {
  return i == kQuery ? type_ : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

OrtCustomOpInputOutputCharacteristic AttentionOp::GetInputCharacteristic(size_t i) const {
  return i == kQuery ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

}  // namespace ort_hina::ort
