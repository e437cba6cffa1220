#include "plan/routing.h"

namespace ort_hina::plan {

void Routing::begin(size_t slots, size_t experts, size_t chunks) {
  slots_ = slots, experts_ = experts, chunks_ = chunks;
  counts_.assign(chunks * experts, 0);
  active_index_.resize(experts);
  order.resize(slots);
  position.resize(slots);
  expert.resize(slots);
}

void Routing::arrange(const std::vector<uint8_t>& left_out) {
  active.clear();
  uint32_t at = 0;
  for (size_t e = 0; e < experts_; ++e) {
    const uint32_t begin = at;
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      const uint32_t count = chunk_counts(chunk)[e];
      chunk_counts(chunk)[e] = at;
      at += count;
    }
    // Their slots are sorted with the others, but nobody looks at them.
    const bool out = !left_out.empty() && left_out[e];
    active_index_[e] = out ? kNoExpert : static_cast<uint32_t>(active.size());
    if (at > begin && !out) active.push_back({static_cast<uint32_t>(e), begin, at - begin});
  }
}

}  // namespace ort_hina::plan
