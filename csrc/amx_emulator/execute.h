// One instruction on the calling thread's tiles.
#pragma once
#include <atomic>

#include "amx_emulator/decode.h"

namespace ort_hina::amx_emulator {

// Where the hardware would raise a fault, the fault hook is called, and the process aborted.
void execute(const Instruction& in);

const char* name_of(amx_emu_op op);

// Of all threads together.
extern std::atomic<unsigned> features;
extern std::atomic<amx_emu_fault_hook> fault_hook;
extern std::atomic<uint64_t> counts[AMX_EMU_OP_COUNT];

}  // namespace ort_hina::amx_emulator
