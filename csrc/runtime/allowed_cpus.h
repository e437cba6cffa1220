// The CPUs that the threads of this process may run on.
#pragma once
#include <cstdint>
#include <vector>

namespace ort_hina::runtime {

// Of all its threads together, ascending: a thread that is pinned to one CPU, as the caller may be, says nothing about the
// others. Any number of CPUs. Never empty.
std::vector<uint32_t> allowed_cpus();

}  // namespace ort_hina::runtime
