// RMSNorm, in f32: x · weight / sqrt(mean of x² + epsilon).
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::operators {

float sum_of_squares(const float* x, size_t n);

class RmsNorm {
 public:
  // size: elements that have one mean, and of the weight.
  RmsNorm(const void* weight, DataType type, size_t size, float epsilon, const kernels::VectorOps& ops);

  size_t size() const { return weight_.size(); }
  // What the elements are multiplied by before the weight.
  float factor(float sum_of_squares) const;
  // Elements [first, first + n) of `size`.
  void apply(float* x, size_t n, size_t first, float factor) const;

 private:
  std::vector<float> weight_;
  float epsilon_;
};

}  // namespace ort_hina::operators
