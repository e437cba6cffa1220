#include "plan/work.h"

#include <algorithm>

namespace ort_hina::plan {
namespace {

// Items for each thread in each step: the last ones to finish differ by one item at most, 1/32 of the step.
constexpr size_t kItemsPerThread = 32;
// An item should outlast the cost of claiming it (about 0.1 µs) by far.
constexpr size_t kMinCopyElements = 4096;
// Enough chunks for every thread of a large machine, few enough that a token's partial sums stay small.
constexpr size_t kMaxChunks = 32;
// Whole blocks of the weight rows that a streaming kernel takes at once.
constexpr size_t kChunkStep = 8;

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
uint32_t u32(size_t x) { return static_cast<uint32_t>(x); }

class Builder {
 public:
  Builder(const Problem& problem, WorkList* list) : p_(problem), list_(*list) {
    list_.items.clear();
    list_.events = 0;
  }

  void build() {
    const uint32_t gathered = new_event();
    const uint32_t gathers = p_.gather ? gather(gathered) : 0;

    const size_t experts = p_.experts->size();
    std::vector<uint32_t> event(experts), signals(experts);
    for (size_t e = 0; e < experts; ++e) {
      event[e] = new_event();
      const MatmulForm& form = (*p_.experts)[e].gate_up;
      signals[e] = matmul(Step::kGateUp, e, form, p_.intermediate, p_.hidden, gathered, gathers, event[e]);
    }
    for (size_t e = 0; e < experts; ++e) {
      if (!(*p_.experts)[e].gate_up.cut_k) continue;
      const uint32_t finished = new_event();
      signals[e] = finish_hidden(e, event[e], signals[e], finished);
      event[e] = finished;
    }
    const uint32_t all_down = new_event();
    uint32_t downs = 0;
    for (size_t e = 0; e < experts; ++e) {
      const MatmulForm& form = (*p_.experts)[e].down;
      downs += matmul(Step::kDown, e, form, p_.hidden, p_.intermediate, event[e], signals[e], all_down);
    }
    combine(all_down, downs);
  }

 private:
  uint32_t new_event() { return list_.events++; }

  void add(Step step, size_t expert, size_t row, size_t rows, size_t begin, size_t count, uint32_t wait,
           uint32_t wait_count, uint32_t signal) {
    list_.items.push_back({step, u32(expert), u32(row), u32(rows), u32(begin), u32(count), wait_count ? wait : kNoEvent,
                           wait_count, signal});
  }

  uint32_t gather(uint32_t signal) {
    const size_t rows = std::max<size_t>({1, ceil_div(kMinCopyElements, p_.hidden),
                                          ceil_div(p_.slots, p_.threads * kItemsPerThread)});
    uint32_t items = 0;
    for (size_t row = 0; row < p_.slots; row += rows, ++items)
      add(Step::kGather, 0, row, std::min(rows, p_.slots - row), 0, p_.hidden, kNoEvent, 0, signal);
    return items;
  }

  // How many outputs an item of this step takes: an even share of all experts' outputs.
  size_t block_outputs(const MatmulForm& form, size_t n, size_t rows) const {
    size_t units = 0;  // output blocks of one row block each
    for (const ExpertLoad& load : *p_.experts) units += ceil_div(load.rows, kMaxItemRows) * n;
    const size_t even = ceil_div(units, p_.threads * kItemsPerThread);
    const size_t most = std::min<size_t>(form.n_most, kMaxItemOutputs / rows);
    const size_t steps = std::min(ceil_div(even, form.n_step), most / form.n_step);
    return std::max<size_t>(1, steps) * form.n_step;
  }

  uint32_t matmul(Step step, size_t e, const MatmulForm& form, size_t n, size_t k, uint32_t wait, uint32_t wait_count,
                  uint32_t signal) {
    const ExpertLoad& load = (*p_.experts)[e];
    uint32_t items = 0;
    if (form.cut_k) {
      const size_t chunk = chunk_inputs(form, load.rows, k);
      for (size_t begin = 0; begin < k; begin += chunk, ++items)
        add(step, e, load.begin, load.rows, begin, std::min(chunk, k - begin), wait, wait_count, signal);
      return items;
    }
    const size_t row_blocks = ceil_div(load.rows, kMaxItemRows);
    const size_t rows = ceil_div(load.rows, row_blocks);
    const size_t outputs = block_outputs(form, n, rows);
    for (size_t row = 0; row < load.rows; row += rows)
      for (size_t begin = 0; begin < n; begin += outputs, ++items)
        add(step, e, load.begin + row, std::min<size_t>(rows, load.rows - row), begin, std::min(outputs, n - begin), wait,
            wait_count, signal);
    return items;
  }

  uint32_t finish_hidden(size_t e, uint32_t wait, uint32_t wait_count, uint32_t signal) {
    const ExpertLoad& load = (*p_.experts)[e];
    const size_t units = std::min<size_t>(kMaxItemOutputs / 2, std::max<size_t>(256, kMinCopyElements / load.rows));
    uint32_t items = 0;
    for (size_t begin = 0; begin < p_.intermediate; begin += units, ++items)
      add(Step::kFinishHidden, e, load.begin, load.rows, begin, std::min(units, p_.intermediate - begin), wait,
          wait_count, signal);
    return items;
  }

  void combine(uint32_t wait, uint32_t wait_count) {
    const size_t columns = std::max<size_t>(512, ceil_div(p_.hidden * p_.tokens, p_.threads * kItemsPerThread));
    const size_t rows = std::max<size_t>(1, columns / p_.hidden);
    for (size_t row = 0; row < p_.tokens; row += rows)
      for (size_t begin = 0; begin < p_.hidden; begin += columns)
        add(Step::kCombine, 0, row, std::min(rows, p_.tokens - row), begin, std::min(columns, p_.hidden - begin), wait,
            wait_count, kNoEvent);
  }

  const Problem& p_;
  WorkList& list_;
};

}  // namespace

uint32_t chunk_inputs(const MatmulForm& form, uint32_t rows, size_t k) {
  const size_t most = ceil_div(ceil_div(k, kMaxChunks), kChunkStep) * kChunkStep;
  return u32(std::max<size_t>(form.k_chunk, most) * std::min<uint32_t>(rows, 4));
}

uint32_t chunk_count(const MatmulForm& form, uint32_t rows, size_t k) {
  return form.cut_k ? u32(ceil_div(k, chunk_inputs(form, rows, k))) : 1;
}

void plan_work(const Problem& problem, WorkList* list) { Builder(problem, list).build(); }

}  // namespace ort_hina::plan
