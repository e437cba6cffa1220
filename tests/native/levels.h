// The instruction levels that run here: the CPU's own, and AMX in the emulator where the CPU lacks only that.
#pragma once
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::native_tests {

// To be called first: lets the emulator take AMX instructions where the CPU does not know them.
void start_emulator_if_needed();

// Are AMX instructions emulated, and so counted?
bool amx_is_emulated();

std::vector<Isa> available_levels();  // best last
std::vector<const kernels::MatmulKernel*> rows_of(Isa level);

}  // namespace ort_hina::native_tests
