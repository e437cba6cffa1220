// The one table of kernels, and the pick by estimated cost.
#pragma once
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::kernels {

// Every kernel of this build, best level last; those of other machines' levels included.
const std::vector<const MatmulKernel*>& table();

const VectorOps& vector_ops(Isa isa);

double estimated_cost(const MatmulKernel& kernel, size_t m, size_t n, size_t k);

// The cheapest kernel of this level for m tokens. Every (level, type, layout) has one for every m.
const MatmulKernel& pick(Isa isa, DataType weights, Layout layout, size_t m, size_t n, size_t k);

}  // namespace ort_hina::kernels
