// Which kernel serves a matmul of this many tokens; told on stderr where ORT_HINA_LOG contains "kernels".
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/table.h"

namespace ort_hina::operators {

class KernelChoice {
 public:
  KernelChoice(Isa level, bool bf16_compute);

  Isa level() const { return level_; }
  // As which its kernels take activations, with weights of this type.
  DataType activations(DataType weights) const { return kernels::activations_for(level_, weights, bf16_compute_); }
  const kernels::MatmulKernel& pick(DataType weights, Layout layout, size_t m, size_t n, size_t k) const {
    const std::vector<const kernels::MatmulKernel*>& rows = candidates_[static_cast<size_t>(weights)][static_cast<size_t>(layout)];
    if (log_) log(rows, m, n, k);
    return kernels::cheapest(rows, m, n, k);
  }

 private:
  // Each question once in the life of the process.
  static void log(const std::vector<const kernels::MatmulKernel*>& rows, size_t m, size_t n, size_t k);

  Isa level_;
  bool bf16_compute_;
  bool log_;
  std::vector<const kernels::MatmulKernel*> candidates_[3][2];  // of each type of weights and layout
};

}  // namespace ort_hina::operators
