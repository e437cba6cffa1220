#include "ort/attention_op.h"

#include <stdexcept>

#include "ort/attention_buffers.h"
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

uint8_t* allocate(const Ort::KernelContext& context, size_t output, const std::vector<int64_t>& shape, DataType type,
                  Buffer* buffer) {
  uint8_t* const data = static_cast<uint8_t*>(context.GetOutput(output, shape).GetTensorMutableRawData());
  size_t bytes = size_of(type);
  for (int64_t dim : shape) bytes *= static_cast<size_t>(dim);
  *buffer = {data, bytes};
  return data;
}

}  // namespace

AttentionKernel::AttentionKernel(const OrtKernelInfo* info, const Settings& settings)
    : node_(node_name(kOperator, info)), threads_(settings.threads) {
  attention_ = std::make_unique<operators::Attention>(read_attributes(info), runtime::choose_isa().isa);
  if (const runtime::Topology* machine = settings.numa->topology(info))
    caches_ = std::make_unique<operators::CachePlacement>(runtime::thread_nodes(*machine), runtime::mapped_pages(*machine));
}

OrtStatusPtr AttentionKernel::ComputeV2(OrtKernelContext* context) {
  return guarded(node_, [&] { compute(context); });
}

void AttentionKernel::compute(OrtKernelContext* raw) const {
  const Ort::KernelContext context(raw);
  const operators::AttentionRule& rule = attention_->rule();
  AttentionTensors tensors = read_attention_inputs(context, rule);
  operators::AttentionInputs& in = tensors.inputs;
  attention_->check(in);

  const int64_t batch = static_cast<int64_t>(in.batch), queries = static_cast<int64_t>(in.queries);
  const int64_t heads = static_cast<int64_t>(rule.kv_heads), length = static_cast<int64_t>(in.keys.present_length);
  const int64_t key_size = static_cast<int64_t>(in.keys.size), value_size = static_cast<int64_t>(in.values.size);
  const int64_t width = static_cast<int64_t>(rule.heads) * value_size;
  std::array<Buffer, kAttentionOutputs> outputs;
  const auto output = [&](size_t i, const std::vector<int64_t>& shape) {
    return allocate(context, i, shape, in.type, &outputs[i]);
  };
  in.output = output(kOutput, {batch, queries, width});
  in.keys.present = output(kPresentKey, {batch, heads, length, key_size});
  in.values.present = output(kPresentValue, {batch, heads, length, value_size});
  check_attention_buffers(tensors.buffers, outputs, in.keys.past_length, in.keys.present_length);
  const operators::CachePlacement::Lease places = caches_ ? caches_->look(in, rule) : operators::CachePlacement::Lease();
  attention_->run(in, {raw, parallel_for, threads_}, places.placement());
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
