// What each instruction level's translation unit offers. Plain C types only: see the units.
#pragma once
#include "kernels/kernel.h"

namespace ort_hina::kernels {

struct IsaTable {
  const MatmulKernel* kernels;
  size_t kernel_count;
  const VectorOps* ops;
};

// Data, not functions: a function in a unit could use instructions that the CPU lacks before anything was chosen.
namespace portable { extern const IsaTable kIsaTable; }
namespace avx2 { extern const IsaTable kIsaTable; }
namespace avx512 { extern const IsaTable kIsaTable; }

}  // namespace ort_hina::kernels
