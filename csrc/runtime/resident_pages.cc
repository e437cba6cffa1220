#include "runtime/resident_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "runtime/memory_policy.h"

namespace ort_hina::runtime {
namespace {

constexpr size_t kBatch = 1 << 16;  // pages

}  // namespace

std::vector<std::pair<uint64_t, uint64_t>> resident_pages(const void* begin, size_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  std::vector<unsigned char> resident(kBatch);
  const PageRange pages = pages_around(begin, bytes);
  const uintptr_t origin = reinterpret_cast<uintptr_t>(begin), end = origin + bytes;
  for (uintptr_t first = pages.begin; first < pages.end; first += kBatch * page_size()) {
    const size_t count = std::min(kBatch, (pages.end - first) / page_size());
    if (mincore(reinterpret_cast<void*>(first), count * page_size(), resident.data()) != 0)
      throw std::system_error(errno, std::generic_category(), "mincore");
    for (size_t i = 0; i < count; ++i) {
      if (!(resident[i] & 1)) continue;
      const uintptr_t page = first + i * page_size();
      const uint64_t from = std::max(page, origin) - origin, to = std::min(page + page_size(), end) - origin;
      if (!runs.empty() && runs.back().second == from) runs.back().second = to;
      else runs.emplace_back(from, to);
    }
  }
  return runs;
}

}  // namespace ort_hina::runtime
