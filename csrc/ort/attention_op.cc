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
  refuse_what_is_not_supported(read);
  return a;
}

// The buffer of a present cache. It may be that of the past, if both have one shape; anything else that they share would be
// overwritten while it is read.
void* present_of(const Ort::KernelContext& context, size_t output, const operators::Cache& cache,
                 const std::vector<int64_t>& shape, DataType type) {
  const std::string name = output == 1 ? "output 1 (present_key)" : "output 2 (present_value)";
  uint8_t* const present = static_cast<uint8_t*>(context.GetOutput(output, shape).GetTensorMutableRawData());
  const uint8_t* const past = static_cast<const uint8_t*>(cache.past);
  if (!past || !present) return present;
  const size_t rows = static_cast<size_t>(shape[0] * shape[1]), row_bytes = cache.size * size_of(type);
  if (past == present && cache.past_length == cache.present_length) return present;
  const uint8_t* const past_end = past + rows * cache.past_length * row_bytes;
  const uint8_t* const present_end = present + rows * cache.present_length * row_bytes;
  if (past < present_end && present < past_end)
    fail(name + ": expected the buffer of the past, of " + to_string(cache.present_length) +
         " rows, or one apart from it; got one that overlaps it, which has " + to_string(cache.past_length) + " rows");
  return present;
}

}  // namespace

AttentionKernel::AttentionKernel(const OrtKernelInfo* info, const Settings& settings)
    : node_(node_name(kOperator, info)), threads_(settings.threads) {
  attention_ = std::make_unique<operators::Attention>(read_attributes(info), runtime::choose_isa().isa);
}

OrtStatusPtr AttentionKernel::ComputeV2(OrtKernelContext* context) {
  try {
    compute(context);
    return nullptr;
  } catch (const std::exception& error) {
    return status_of(node_, error);
  }
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
  in.keys.present = present_of(context, 1, in.keys, {batch, heads, length, key_size}, in.type);
  in.values.present = present_of(context, 2, in.values, {batch, heads, length, value_size}, in.type);
  attention_->run(in, {raw, parallel_for, threads_});
}

OrtStatusPtr AttentionOp::CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
  try {
    *kernel = new AttentionKernel(info, settings_);
    return nullptr;
  } catch (const std::exception& error) {
    return status_of(node_name(kOperator, info), error);
  }
}

size_t AttentionOp::GetInputTypeCount() const { return kAttentionInputs; }

ONNXTensorElementDataType AttentionOp::GetInputType(size_t i) const {
  return i == kQuery ? type_ : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

OrtCustomOpInputOutputCharacteristic AttentionOp::GetInputCharacteristic(size_t i) const {
  return i == kQuery || i == kSeqlensK || i == kTotalSequenceLength ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

}  // namespace ort_hina::ort
