// The sigmoid gates of a node's experts: sigmoid(x · g), with products of f32 at every level.
#pragma once
#include "kernels/table.h"
#include "operators/moe_config.h"

namespace ort_hina::operators {

class SigmoidGates {
 public:
  SigmoidGates(const MoeConfig& config, Isa level);

  // For value(); 64-byte aligned.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // Of a gate's vector; x: f32 [hidden].
  float value(const Matrix& gate, const float* x, void* scratch) const;

 private:
  size_t hidden_;
  const kernels::MatmulKernel* kernels_[3][2];  // of each type of weights and layout
  size_t scratch_bytes_ = 0;
};

}  // namespace ort_hina::operators
