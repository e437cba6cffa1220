#include "operators/kernel_choice.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>

namespace ort_hina::operators {

KernelChoice::KernelChoice(Isa level, bool bf16_compute) : level_(level), bf16_compute_(bf16_compute) {
  const char* topics = std::getenv("ORT_HINA_LOG");
  log_ = topics && std::strstr(topics, "kernels");
  for (DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16})
    for (Layout layout : {Layout::kNK, Layout::kKN})
      candidates_[static_cast<size_t>(type)][static_cast<size_t>(layout)] =
          kernels::candidates(level, type, layout, activations(type));
}

void KernelChoice::log(const std::vector<const kernels::MatmulKernel*>& rows, size_t m, size_t n, size_t k) {
  static std::mutex mutex;
  static std::set<std::tuple<const kernels::MatmulKernel*, size_t, size_t, size_t>> told;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!told.emplace(rows.back(), m, n, k).second) return;
  const kernels::MatmulKernel& chosen = kernels::cheapest(rows, m, n, k);
  for (const kernels::MatmulKernel* row : rows)
    std::fprintf(stderr, "ort_hina: kernels: m=%zu n=%zu k=%zu: %c %s, %.0f cycles\n", m, n, k, row == &chosen ? '*' : ' ',
                 row->name, kernels::estimated_cost(*row, m, n, k));
}

}  // namespace ort_hina::operators
