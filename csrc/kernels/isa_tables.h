// What each instruction level's translation unit offers. Plain C types only: see the units.
#pragma once
#include "kernels/kernel.h"

namespace ort_hina::kernels {

struct IsaTable {
  Isa isa;
  const MatmulKernel* kernels;
  size_t kernel_count;
  const VectorOps* ops;     // null: those of the level below
  void (*attend)(const AttendArgs&);  // in the place of theirs; null: theirs
  const TileState* tiles;   // null: this level has none
};

// Data, not functions: a function in a unit could use instructions that the CPU lacks before anything was chosen.
namespace portable { extern const IsaTable kIsaTable; }
namespace avx2 { extern const IsaTable kIsaTable; }
namespace avx512 { extern const IsaTable kIsaTable; }
namespace avx512_bf16 { extern const IsaTable kIsaTable; }
namespace amx { extern const IsaTable kIsaTable; }

}  // namespace ort_hina::kernels
