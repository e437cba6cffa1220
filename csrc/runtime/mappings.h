// What the address space of this process holds.
#pragma once
#include <string>
#include <vector>

#include "runtime/memory_policy.h"

namespace ort_hina::runtime {

struct Mapping {
  PageRange pages;
  bool writable, shared;
  bool anonymous;    // memory of the process alone, of no file
  std::string name;  // of the file, or as the kernel calls it; may be empty
};

// The mappings that have a byte of `pages`, cut to it, ascending. There may be gaps. Empty where the system does not say.
std::vector<Mapping> mappings_in(const PageRange& pages);

}  // namespace ort_hina::runtime
