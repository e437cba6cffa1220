// The one table of kernels, and the pick by estimated cost.
#pragma once
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::kernels {

// Every kernel of this build, best level last; those of other machines' levels included.
const std::vector<const MatmulKernel*>& table();

// The best operations up to this level.
const VectorOps& vector_ops(Isa level);

// Null where kernels up to this level leave no tile configuration behind.
const TileState* tile_state(Isa level);

// In what type the products of these weights are formed. bf16 weights meet bf16 activations at the levels whose hardware wants
// that; f32 and f16 weights do where the user asks for it (`bf16_compute`) and the level can. Fixed for all sizes, so that a
// token answers the same in any company.
DataType activations_for(Isa level, DataType weights, bool bf16_compute);

// The kernels up to this level for such a matmul. Never empty.
std::vector<const MatmulKernel*> candidates(Isa level, DataType weights, Layout layout, DataType activations);

double estimated_cost(const MatmulKernel& kernel, size_t m, size_t n, size_t k);

// The cheapest for m tokens.
const MatmulKernel& cheapest(const std::vector<const MatmulKernel*>& candidates, size_t m, size_t n, size_t k);

}  // namespace ort_hina::kernels
