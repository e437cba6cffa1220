// Which pages of a file mapping are in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ort_hina::runtime {

// Runs [begin, end) of bytes from `begin`, ascending, whose pages are in the page cache now. Nothing is read. For a file that the
// process may not write and does not own, the kernel says that all are. Throws std::system_error where the range is not mapped.
std::vector<std::pair<uint64_t, uint64_t>> resident_pages(const void* begin, size_t bytes);

}  // namespace ort_hina::runtime
