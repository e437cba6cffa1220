#include "plan/page_map.h"

#include <algorithm>

namespace ort_hina::plan {

void PageMap::append(uint64_t bytes, Node node) {
  if (bytes == 0) return;
  const uint64_t begin = this->bytes();
  if (!runs_.empty() && runs_.back().node == node) runs_.back().end += bytes;
  else runs_.push_back({begin, begin + bytes, node});
}

size_t PageMap::find(uint64_t byte) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), byte, [](uint64_t b, const Run& run) { return b < run.end; });
  return static_cast<size_t>(after - runs_.begin());
}

uint64_t PageMap::bytes_on(Node node) const {
  uint64_t bytes = 0;
  for (const Run& run : runs_)
    if (run.node == node) bytes += run.end - run.begin;
  return bytes;
}

}  // namespace ort_hina::plan
