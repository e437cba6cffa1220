// What each instruction level's translation unit offers. Plain C types only: see the units.
#pragma once
#include "kernels/kernel.h"

namespace ort_hina::kernels {

struct IsaTable {
  const MatmulKernel* kernels;
  size_t kernel_count;
  const VectorOps* ops;
};

namespace portable { IsaTable isa_table(); }
namespace avx2 { IsaTable isa_table(); }
namespace avx512 { IsaTable isa_table(); }

}  // namespace ort_hina::kernels
