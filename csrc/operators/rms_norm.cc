#include "operators/rms_norm.h"

#include <cmath>

namespace ort_hina::operators {
namespace {

// Sums beside each other: additions wait for those before them, and compilers may not reorder them.
constexpr size_t kLanes = 16;

}  // namespace

float sum_of_squares(const float* x, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  for (; i < n; ++i) lanes[i % kLanes] += x[i] * x[i];
  for (size_t step = kLanes / 2; step; step /= 2)
    for (size_t j = 0; j < step; ++j) lanes[j] += lanes[j + step];
  return lanes[0];
}

RmsNorm::RmsNorm(const void* weight, DataType type, size_t size, float epsilon, const kernels::VectorOps& ops)
    : weight_(size), epsilon_(epsilon) {
  ops.widen(weight, type, size, 1.0f, weight_.data());
}

float RmsNorm::factor(float sum) const { return 1.0f / std::sqrt(sum / static_cast<float>(size()) + epsilon_); }

void RmsNorm::apply(float* __restrict x, size_t n, size_t first, float factor) const {
  const float* __restrict weight = weight_.data() + first;
  for (size_t i = 0; i < n; ++i) x[i] = x[i] * factor * weight[i];
}

}  // namespace ort_hina::operators
