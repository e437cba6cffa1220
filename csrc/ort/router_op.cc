#include "ort/router_op.h"

#include <stdexcept>

#include "ort/attribute_reader.h"
#include "ort/tensors.h"
#include "runtime/cpu.h"

namespace ort_hina::ort {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

constexpr char kOperator[] = "Router";

operators::RouterAttributes read_attributes(const OrtKernelInfo* info) {
  const AttributeReader read(info);
  operators::RouterAttributes a;
  a.k = read.integer("k");
  a.score = read.text("score", a.score);
  a.num_groups = read.integer("num_groups", a.num_groups);
  a.top_groups = read.integer("top_groups", a.top_groups);
  a.group_score = read.text("group_score", a.group_score);
  a.masked_score = read.real("masked_score", a.masked_score);
  a.weight_function = read.text("weight_function", a.weight_function);
  a.normalize = read.integer("normalize", a.normalize);
  a.normalize_epsilon = read.real("normalize_epsilon", a.normalize_epsilon);
  a.normalize_min = read.real("normalize_min", a.normalize_min);
  a.scale = read.real("scale", a.scale);
  a.jitter = read.real("jitter", a.jitter);
  return a;
}

constexpr char kLogits[] = "input 0 (logits)";
constexpr char kBias[] = "input 1 (selection_bias)";

void read_bias(const Ort::ConstValue& bias, operators::RouterInputs* in) {
  const auto info = bias.GetTensorTypeAndShapeInfo();
  const std::vector<int64_t> shape = info.GetShape();
  if (shape.size() != 1 || static_cast<size_t>(shape[0]) != in->experts)
    fail(std::string(kBias) + ": expected shape (" + std::to_string(in->experts) + ") as the last dimension of logits, got " +
         describe(shape));
  in->bias_type = floating_type(info.GetElementType(), kBias);
  in->bias = bias.GetTensorRawData();
}

}  // namespace

RouterKernel::RouterKernel(const OrtKernelInfo* info, const Settings& settings)
    : node_(node_name(kOperator, info)), threads_(settings.threads) {
  router_ = std::make_unique<operators::Router>(read_attributes(info), runtime::choose_isa().isa);
}

OrtStatusPtr RouterKernel::ComputeV2(OrtKernelContext* context) {
  return guarded(node_, [&] { compute(context); });
}

void RouterKernel::compute(OrtKernelContext* raw) const {
  const Ort::KernelContext context(raw);
  const Ort::ConstValue logits = context.GetInput(0);
  const Rows rows = rows_of(logits, kLogits);
  operators::RouterInputs in = {};
  in.logits = logits.GetTensorRawData();
  in.logits_type = floating_type(rows.type, kLogits);
  in.tokens = rows.rows;
  in.experts = rows.width;
  if (context.GetInputCount() > 1)
    if (const Ort::ConstValue bias = context.GetInput(1)) read_bias(bias, &in);
  router_->check(in);

  std::vector<int64_t> shape = rows.shape;
  shape.back() = static_cast<int64_t>(router_->k());
  in.ids = context.GetOutput(0, shape).GetTensorMutableData<int64_t>();
  in.weights = context.GetOutput(1, shape).GetTensorMutableData<float>();
  router_->run(in, {raw, parallel_for, threads_});
}

OrtStatusPtr RouterOp::CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
  return guarded(node_name(kOperator, info), [&] { *kernel = new RouterKernel(info, settings_); });
}

}  // namespace ort_hina::ort
