#include "kernels/table.h"

#include "kernels/isa_tables.h"

namespace ort_hina::kernels {
namespace {

const std::vector<IsaTable>& isa_tables() {
  static const std::vector<IsaTable> tables = {
      portable::kIsaTable,
#if defined(__x86_64__)
      avx2::kIsaTable,
      avx512::kIsaTable,
      avx512_bf16::kIsaTable,
      amx::kIsaTable,
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

// Of each table, with what it takes over from the one below.
std::vector<VectorOps> collect_ops() {
  std::vector<VectorOps> all;
  for (const IsaTable& table : isa_tables()) {
    all.push_back(table.ops ? *table.ops : all.back());
    if (!table.attend) continue;
    all.back().isa = table.isa;
    all.back().attend = table.attend;
  }
  return all;
}

size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

}  // namespace

const std::vector<const MatmulKernel*>& table() {
  static const std::vector<const MatmulKernel*> rows = collect();
  return rows;
}

const VectorOps& vector_ops(Isa level) {
  static const std::vector<VectorOps> ops = collect_ops();
  size_t best = 0;
  for (size_t i = 0; i < ops.size(); ++i)
    if (isa_tables()[i].isa <= level) best = i;
  return ops[best];
}

const TileState* tile_state(Isa level) {
  for (const IsaTable& table : isa_tables())
    if (table.isa <= level && table.tiles) return table.tiles;
  return nullptr;
}

DataType activations_for(Isa level, DataType weights, bool bf16_compute) {
  const bool wanted = weights == DataType::kBF16 || bf16_compute;
  return wanted && level >= Isa::kAvx512Bf16 ? DataType::kBF16 : DataType::kF32;
}

std::vector<const MatmulKernel*> candidates(Isa level, DataType weights, Layout layout, DataType activations) {
  std::vector<const MatmulKernel*> rows;
  for (const MatmulKernel* row : table())
    if (row->isa <= level && row->weights == weights && row->layout == layout && row->activations == activations)
      rows.push_back(row);
  return rows;
}

double estimated_cost(const MatmulKernel& kernel, size_t m, size_t n, size_t k) {
  const Cost& cost = kernel.cost;
  const double passes = static_cast<double>((m + size_t{cost.pass_tokens} - 1) / cost.pass_tokens);
  const double tokens = static_cast<double>(round_up(m, cost.token_step));
  return static_cast<double>(n) * static_cast<double>(k) * (passes * cost.per_pass + tokens * cost.per_mac);
}

const MatmulKernel& cheapest(const std::vector<const MatmulKernel*>& candidates, size_t m, size_t n, size_t k) {
  const MatmulKernel* best = candidates.front();
  double best_cost = estimated_cost(*best, m, n, k);
  for (const MatmulKernel* row : candidates) {
    const double cost = estimated_cost(*row, m, n, k);
    if (cost < best_cost) best = row, best_cost = cost;
  }
  return *best;
}

}  // namespace ort_hina::kernels
