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
  const kernels::MatmulKernel& pick(DataType weights, Layout layout, size_t m, size_t n, size_t k) const {
    const std::vector<const kernels::MatmulKernel*>& rows = candidates_[static_cast<size_t>(weights)][static_cast<size_t>(layout)];
    if (log_) log(rows, m, n, k);
    return kernels::cheapest(rows, m, n, k);
  }

 private:
  // Each question once in the life of the process.
  static void log(const std::vector<const kernels::MatmulKernel*>& rows, size_t m, size_t n, size_t k);

  Isa level_;
  bool log_;
  std::vector<const kernels::MatmulKernel*> candidates_[3][2];  // of each type of weights and layout
};

}  // namespace ort_hina::operators
