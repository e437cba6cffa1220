// AMX instructions as they are encoded.
#pragma once
#include <stdint.h>
#include <ucontext.h>

#include "amx_emulator/amx_emulator.h"

namespace ort_hina::amx_emulator {

struct Instruction {
  amx_emu_op op;
  const uint8_t* rip;
  int length;
  int reg, rm, vvvv;  // numbers of tiles
  uint64_t address;   // of the memory operand (row 0 for loads and stores of tiles)
  uint64_t stride;
};

// True, and *in filled, where an AMX instruction is at RIP. Reads no byte beyond it.
bool decode(const ucontext_t* context, Instruction* in);

}  // namespace ort_hina::amx_emulator
