// Which tokens go to which expert: a stable counting sort of the chosen ids.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::plan {

struct ActiveExpert {
  uint32_t id;
  uint32_t begin;  // first sorted slot
  uint32_t count;
};

// A slot is one choice of one token: slot t*k + j is the j-th choice of token t.
struct Routing {
  std::vector<ActiveExpert> active;  // ascending ids, those with at least one slot
  std::vector<uint32_t> order;       // sorted position -> slot; within an expert, slots ascend
  std::vector<uint32_t> position;    // slot -> sorted position
  std::vector<uint32_t> expert;      // slot -> index into `active`
};

// The first slot whose id lies outside [0, experts), or `slots` if all are inside.
template <typename Id>
size_t first_bad_id(const Id* ids, size_t slots, size_t experts) {
  for (size_t s = 0; s < slots; ++s)
    if (ids[s] < 0 || static_cast<uint64_t>(ids[s]) >= experts) return s;
  return slots;
}

// ids[0..slots) must all lie in [0, experts).
template <typename Id>
void route(const Id* ids, size_t slots, size_t experts, Routing* routing) {
  std::vector<uint32_t>& expert = routing->expert;
  std::vector<uint32_t> next(experts, 0);
  for (size_t s = 0; s < slots; ++s) ++next[static_cast<size_t>(ids[s])];

  routing->active.clear();
  std::vector<uint32_t> active_index(experts, 0);
  uint32_t begin = 0;
  for (size_t e = 0; e < experts; ++e) {
    const uint32_t count = next[e];
    next[e] = begin;
    if (!count) continue;
    active_index[e] = static_cast<uint32_t>(routing->active.size());
    routing->active.push_back({static_cast<uint32_t>(e), begin, count});
    begin += count;
  }
  routing->order.resize(slots);
  routing->position.resize(slots);
  expert.resize(slots);
  for (size_t s = 0; s < slots; ++s) {
    const size_t e = static_cast<size_t>(ids[s]);
    const uint32_t at = next[e]++;
    routing->order[at] = static_cast<uint32_t>(s);
    routing->position[s] = at;
    expert[s] = active_index[e];
  }
}

}  // namespace ort_hina::plan
