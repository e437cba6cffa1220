// What this CPU and its operating system offer, and which level is chosen.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace ort_hina::runtime {

struct IsaLevel {
  Isa isa;
  bool available;
  std::string reason;  // what is missing, or what was found
  bool emulated = false;
};

// Every level of this build, best first. ORT_HINA_EMULATED_AMX=1 makes AMX available to tests on a CPU without it, where
// they run its instructions in an emulator. The environment is read at each call.
const std::vector<IsaLevel>& isa_levels();

struct IsaChoice {
  Isa isa;
  std::string reason;
};

// The best available level that is not emulated, or the one that ORT_HINA_ISA names. Throws std::invalid_argument where that
// is unknown or lacking. The environment is read at each call.
IsaChoice choose_isa();

struct CpuidRegisters {
  uint32_t a, b, c, d;
};

// What there is to ask of an x86-64 CPU and its system.
struct X86Source {
  // Zeros where the CPU has no such leaf.
  std::function<CpuidRegisters(uint32_t leaf, uint32_t subleaf)> cpuid;
  // The state that the system has enabled (XGETBV). Called only where the CPU says that this can be asked.
  std::function<uint64_t()> xcr0;
  // The system's permission to use AMX tiles: 0, or the errno of its refusal. Called only where CPU and XCR0 have AMX.
  std::function<int()> request_tiles;
};

// The levels of an x86-64 build on such a CPU, best first. A level is available only if those below it are.
std::vector<IsaLevel> x86_levels(const X86Source& source);

// Threads that this process may run on at once.
size_t usable_threads();

}  // namespace ort_hina::runtime
