// What this CPU and its operating system offer, and which level is chosen.
#pragma once
#include <string>
#include <vector>

#include "kernels/types.h"

namespace ort_hina::runtime {

struct IsaLevel {
  Isa isa;
  bool available;
  std::string reason;  // what is missing, or what was found
};

// Every level of this build, best first.
const std::vector<IsaLevel>& isa_levels();

struct IsaChoice {
  Isa isa;
  std::string reason;
};

// The best available level, or the one that ORT_HINA_ISA names. Throws std::invalid_argument where that is unknown or
// lacking. The environment is read at each call.
IsaChoice choose_isa();

// Threads that this process may run on at once.
size_t usable_threads();

}  // namespace ort_hina::runtime
