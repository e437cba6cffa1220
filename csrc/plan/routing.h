// Which tokens go to which expert: a stable counting sort of the chosen ids, in chunks that several threads may take.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::plan {

// Of a slot whose expert is left out.
constexpr uint32_t kNoExpert = UINT32_MAX;

// The ids of a call in which every token goes to every expert, in order.
struct EveryExpert {
  size_t experts;
  int64_t operator[](size_t slot) const { return static_cast<int64_t>(slot % experts); }
};

struct ActiveExpert {
  uint32_t id;
  uint32_t begin;  // first sorted slot
  uint32_t count;
};

// A slot is one choice of one token: slot t*k + j is the j-th choice of token t.
class Routing {
 public:
  std::vector<ActiveExpert> active;  // ascending ids, those with at least one slot that are not left out
  std::vector<uint32_t> order;       // sorted position -> slot; within an expert, slots ascend
  std::vector<uint32_t> position;    // slot -> sorted position
  std::vector<uint32_t> expert;      // slot -> index into `active`, or kNoExpert

  // Then count() of every chunk, arrange(), place() of every chunk. Chunks are independent of each other.
  void begin(size_t slots, size_t experts, size_t chunks);

  // `ids[slot]` is an integer. Returns the chunk's first slot whose id lies outside [0, experts), or slots() if there is
  // none.
  template <typename Ids>
  size_t count(Ids ids, size_t chunk) {
    uint32_t* counts = chunk_counts(chunk);
    size_t bad = slots_;
    for (size_t s = first_slot(chunk); s < first_slot(chunk + 1); ++s) {
      if (ids[s] >= 0 && static_cast<uint64_t>(ids[s]) < experts_) ++counts[static_cast<size_t>(ids[s])];
      else if (bad == slots_) bad = s;
    }
    return bad;
  }

  // All ids must lie in [0, experts). `left_out`: 1 for each expert whose slots get none; empty: there is no such expert.
  void arrange(const std::vector<uint8_t>& left_out = {});

  template <typename Ids>
  void place(Ids ids, size_t chunk) {
    uint32_t* next = chunk_counts(chunk);
    for (size_t s = first_slot(chunk); s < first_slot(chunk + 1); ++s) {
      const size_t e = static_cast<size_t>(ids[s]);
      const uint32_t at = next[e]++;
      order[at] = static_cast<uint32_t>(s);
      position[s] = at;
      expert[s] = active_index_[e];
    }
  }

  size_t slots() const { return slots_; }
  size_t chunks() const { return chunks_; }

 private:
  size_t first_slot(size_t chunk) const { return slots_ * chunk / chunks_; }
  uint32_t* chunk_counts(size_t chunk) { return counts_.data() + chunk * experts_; }

  size_t slots_ = 0, experts_ = 0, chunks_ = 1;
  std::vector<uint32_t> counts_;        // [chunks][experts]: how many, then where the next one goes
  std::vector<uint32_t> active_index_;  // expert -> index into `active`, or kNoExpert
};

}  // namespace ort_hina::plan
