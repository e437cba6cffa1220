#include "levels.h"

#include <cstdlib>

#include "kernels/table.h"
#include "runtime/cpu.h"

#if defined(__x86_64__)
#include "amx_emulator/amx_emulator.h"
#endif

namespace ort_hina::native_tests {

#if defined(__x86_64__)
void start_emulator_if_needed() {
  if (!amx_emu_native() && amx_emu_install() == 0) setenv("ORT_HINA_EMULATED_AMX", "1", 1);
}

bool amx_is_emulated() { return amx_emu_installed(); }
#else
void start_emulator_if_needed() {}
bool amx_is_emulated() { return false; }
#endif

std::vector<Isa> available_levels() {
  std::vector<Isa> levels;
  for (const runtime::IsaLevel& level : runtime::isa_levels())
    if (level.available) levels.insert(levels.begin(), level.isa);
  return levels;
}

std::vector<const kernels::MatmulKernel*> rows_of(Isa level) {
  std::vector<const kernels::MatmulKernel*> rows;
  for (const kernels::MatmulKernel* row : kernels::table())
    if (row->isa == level) rows.push_back(row);
  return rows;
}

}  // namespace ort_hina::native_tests
