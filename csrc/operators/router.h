// The Router operator: attributes, kernel, region. No ONNX Runtime types.
#pragma once
#include <string>

#include "kernels/kernel.h"
#include "runtime/region.h"

namespace ort_hina::operators {

// As they stand in the node (docs/operators.md).
struct RouterAttributes {
  int64_t k = 0;
  std::string score = "softmax";
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  std::string group_score = "max";
  float masked_score = 0.0f;
  std::string weight_function = "none";
  int64_t normalize = 0;
  float normalize_epsilon = 0.0f;
  float normalize_min = 0.0f;
  float scale = 1.0f;
  float jitter = 0.0f;
};

struct RouterInputs {
  const void* logits;  // [tokens, experts]
  DataType logits_type;
  const void* bias;  // [experts]; null: none
  DataType bias_type;
  size_t tokens, experts;
  int64_t* ids;    // [tokens, k]
  float* weights;  // [tokens, k]
};

// Holds no state of a call: run() may be entered by several threads at once.
class Router {
 public:
  // Throws std::invalid_argument where an attribute means nothing.
  Router(const RouterAttributes& attributes, Isa level);

  size_t k() const { return rule_.k; }

  // Throws std::invalid_argument where the attributes do not fit the number of experts, or a bias. Looks at no data.
  void check(const RouterInputs& inputs) const;

  // Checked inputs.
  void run(const RouterInputs& inputs, const runtime::Pool& pool) const;

 private:
  kernels::RoutingRule rule_;
  const kernels::VectorOps& ops_;
};

}  // namespace ort_hina::operators
