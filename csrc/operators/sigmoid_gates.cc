#include "operators/sigmoid_gates.h"

#include <algorithm>
#include <cmath>

namespace ort_hina::operators {

SigmoidGates::SigmoidGates(const MoeConfig& config, Isa level) : hidden_(config.hidden) {
  for (DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16})
    for (Layout layout : {Layout::kNK, Layout::kKN}) {
      const kernels::MatmulKernel& kernel =
          kernels::cheapest(kernels::candidates(level, type, layout, DataType::kF32), 1, 1, hidden_);
      kernels_[static_cast<size_t>(type)][static_cast<size_t>(layout)] = &kernel;
      if (config.sigmoid_gates) scratch_bytes_ = std::max(scratch_bytes_, kernel.scratch_bytes(1, 1));
    }
}

float SigmoidGates::value(const Matrix& gate, const float* x, void* scratch) const {
  float logit;
  kernels::MatmulArgs args = {};
  args.a = x;
  args.lda = hidden_;
  args.w = gate.data;
  args.ldw = gate.ld;
  args.c = &logit;
  args.ldc = 1;
  args.m = 1, args.n = 1, args.k = hidden_;
  args.scratch = scratch;
  kernels_[static_cast<size_t>(gate.type)][static_cast<size_t>(gate.layout)]->run(args);
  return 1.0f / (1.0f + std::exp(-logit));
}

}  // namespace ort_hina::operators
