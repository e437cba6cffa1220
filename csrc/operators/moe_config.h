// What a MoE node says about itself (docs/operators.md), and where its matrices lie.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace ort_hina::operators {

// A flat view of weights: a byte range of a data file, or an inline initializer.
struct Window {
  const uint8_t* data;
  size_t bytes;
  DataType type;
};

// One of gate, up and down, for all experts.
struct MatrixAttributes {
  std::vector<int64_t> offsets;  // bytes; -1: missing
  std::vector<int64_t> windows;  // empty: all 0
  std::vector<int64_t> strides;  // elements, along k and along n
  std::vector<int64_t> bias_offsets;
  std::vector<int64_t> bias_windows;
  int64_t bias_stride = 1;
};

// A vector of each expert.
struct VectorAttributes {
  std::vector<int64_t> offsets;  // bytes; -1: this expert has none. Empty: no expert has one
  std::vector<int64_t> windows;  // empty: all 0
  int64_t stride = 1;            // elements
};

struct MoeAttributes {
  int64_t num_experts = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  MatrixAttributes gate, up, down;
  std::string activation;
  float activation_alpha = 1.702f;
  float activation_beta = 1.0f;
  float swiglu_limit = __builtin_inff();
  std::string weight_on = "output";
  std::string missing_experts = "error";
  VectorAttributes sigmoid_gate;
};

struct Matrix {
  const uint8_t* data = nullptr;  // null: this expert is missing
  DataType type = DataType::kF32;
  Layout layout = Layout::kNK;
  size_t ld = 0;
};

struct Bias {
  const uint8_t* data = nullptr;  // null: none
  DataType type = DataType::kF32;
  size_t stride = 1;
};

struct Expert {
  Matrix gate, up, down;
  // Gate and up lie interleaved: `gate` describes both as one matrix of 2·I outputs, gate first.
  bool interleaved = false;
  Bias gate_bias, up_bias, down_bias;
  Matrix sigmoid_gate;  // hidden inputs, one output. No data: none
};

struct MoeConfig {
  size_t num_experts, hidden, intermediate;
  bool gated;
  bool weight_on_input;
  ActivationSpec activation;
  std::vector<Expert> experts;
  bool sigmoid_gates;  // whether any expert has one
  // 1 for each missing expert, if choosing it contributes nothing. Empty: choosing a missing expert is an error.
  std::vector<uint8_t> left_out;
};

// Throws std::invalid_argument, naming the attribute, what was expected and what came.
MoeConfig resolve(const MoeAttributes& attributes, const std::vector<Window>& windows);

}  // namespace ort_hina::operators
