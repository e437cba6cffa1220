#include "kernels/table.h"

#include <cmath>

#include "kernels/isa_tables.h"

namespace ort_hina::kernels {
namespace {

const std::vector<IsaTable>& isa_tables() {
  static const std::vector<IsaTable> tables = {
      portable::kIsaTable,
#if defined(__x86_64__)
      avx2::kIsaTable,
      avx512::kIsaTable,
#endif
  };
  return tables;
}

std::vector<const MatmulKernel*> collect() {
  std::vector<const MatmulKernel*> rows;
  for (const IsaTable& isa : isa_tables())
    for (size_t i = 0; i < isa.kernel_count; ++i) rows.push_back(&isa.kernels[i]);
  return rows;
}

}  // namespace

const std::vector<const MatmulKernel*>& table() {
  static const std::vector<const MatmulKernel*> rows = collect();
  return rows;
}

const VectorOps& vector_ops(Isa isa) {
  for (const IsaTable& table : isa_tables())
    if (table.ops->isa == isa) return *table.ops;
  return *isa_tables().front().ops;
}

double estimated_cost(const MatmulKernel& kernel, size_t m, size_t n, size_t k) {
  const double passes = std::ceil(static_cast<double>(m) / kernel.cost.pass_tokens);
  return static_cast<double>(n) * k * (passes * kernel.cost.per_pass + m * kernel.cost.per_mac);
}

const MatmulKernel& pick(Isa isa, DataType weights, Layout layout, size_t m, size_t n, size_t k) {
  const MatmulKernel* best = nullptr;
  double best_cost = 0;
  for (const MatmulKernel* row : table()) {
    if (row->isa != isa || row->weights != weights || row->layout != layout) continue;
    const double cost = estimated_cost(*row, m, n, k);
    if (!best || cost < best_cost) best = row, best_cost = cost;
  }
  return *best;
}

}  // namespace ort_hina::kernels
