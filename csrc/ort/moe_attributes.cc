#include "ort/moe_attributes.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "ort/attribute_reader.h"

namespace ort_hina::ort {
namespace {

operators::MatrixAttributes read_matrix(const AttributeReader& read, const std::string& role, std::vector<int64_t> offsets) {
  operators::MatrixAttributes matrix;
  matrix.offsets = std::move(offsets);
  matrix.strides = matrix.offsets.empty() ? read.integers_or_none(role + "_strides") : read.integers(role + "_strides");
  matrix.windows = read.integers_or_none(role + "_windows");
  matrix.bias_offsets = read.integers_or_none(role + "_bias_offsets");
  matrix.bias_windows = read.integers_or_none(role + "_bias_windows");
  matrix.bias_stride = read.integer(role + "_bias_stride", 1);
  return matrix;
}

// The C API numbers element types as ONNX's TensorProto does. The value comes from a file: it need not fit the enumeration.
DataType element_type(int64_t value, size_t window) {
  switch (value) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return DataType::kF32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DataType::kF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DataType::kBF16;
  }
  throw std::invalid_argument("attribute window_types: window " + std::to_string(window) +
                              ": expected 1 (float), 10 (float16) or 16 (bfloat16), got " + std::to_string(value));
}

}  // namespace

operators::MoeAttributes read_moe_attributes(const OrtKernelInfo* info) {
  const AttributeReader read(info);
  operators::MoeAttributes a;
  a.num_experts = read.integer("num_experts");
  a.hidden_size = read.integer("hidden_size");
  a.intermediate_size = read.integer("intermediate_size");
  a.gate = read_matrix(read, "gate", read.integers("gate_offsets"));
  a.up = read_matrix(read, "up", read.integers_or_none("up_offsets"));
  a.down = read_matrix(read, "down", read.integers("down_offsets"));
  a.activation = read.text("activation");
  a.activation_alpha = read.real("activation_alpha", a.activation_alpha);
  a.activation_beta = read.real("activation_beta", a.activation_beta);
  a.swiglu_limit = read.real("swiglu_limit", a.swiglu_limit);
  a.weight_on = read.text("weight_on", a.weight_on);
  a.missing_experts = read.text("missing_experts", a.missing_experts);
  a.sigmoid_gate.offsets = read.integers_or_none("sigmoid_gate_offsets");
  a.sigmoid_gate.windows = read.integers_or_none("sigmoid_gate_windows");
  a.sigmoid_gate.stride = read.integer("sigmoid_gate_stride", a.sigmoid_gate.stride);
  return a;
}

std::vector<DataType> read_window_types(const OrtKernelInfo* info, size_t windows) {
  const std::vector<int64_t> values = AttributeReader(info).integers("window_types");
  if (values.size() != windows)
    throw std::invalid_argument("attribute window_types: expected " + std::to_string(windows) +
                                (windows == 1 ? " value" : " values") + ", one for each window, got " +
                                std::to_string(values.size()));
  std::vector<DataType> types;
  for (const int64_t value : values) types.push_back(element_type(value, types.size()));
  return types;
}

}  // namespace ort_hina::ort
