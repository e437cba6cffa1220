#include "plan/work.h"

#include <algorithm>

namespace ort_hina::plan {
namespace {

// Items for each thread in each step, so that threads finish a step within 1/32 of each other. Where few tokens share long weight
// rows there are fewer, since long runs are read faster. Those of the last quarter of the rows are smaller.
constexpr size_t kItemsPerThread = 32, kWideItemsPerThread = 4;
constexpr size_t kFineShare = 4, kFineness = 4, kWideFineness = 16;
// An item should outlast the cost of claiming it (about 0.1 µs) by far.
constexpr size_t kMinCopyElements = 4096;
// Enough chunks for every thread of a large machine, few enough that a token's partial sums stay small.
constexpr size_t kMaxChunks = 32;
// Whole blocks of the weight rows that a streaming kernel takes at once.
constexpr size_t kChunkStep = 8;

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
uint32_t u32(size_t x) { return static_cast<uint32_t>(x); }

}  // namespace

uint32_t chunk_inputs(const MatmulForm& form, uint32_t rows, size_t k) {
  const size_t step = std::max<size_t>(kChunkStep, form.k_chunk % 32 ? 1 : 32);
  const size_t most = round_up(ceil_div(k, kMaxChunks), step);
  return u32(std::max<size_t>(form.k_chunk, most) * std::min<uint32_t>(rows, 4));
}

uint32_t chunk_count(const MatmulForm& form, uint32_t rows, size_t k) {
  return form.cut_k ? u32(ceil_div(k, chunk_inputs(form, rows, k))) : 1;
}

uint32_t WorkPlan::Grid::items() const { return rows ? u32(ceil_div(rows, row_block)) * across : 0; }

void WorkPlan::build(const Problem& problem) {
  p_ = problem;
  experts_ = problem.experts->size();
  grids_.resize((kSteps - 1) * experts_ + 1);
  fine_.resize(experts_);

  size_t rows = 0, row_blocks = 0;
  for (const ExpertLoad& load : *p_.experts) rows += load.rows, row_blocks += ceil_div(load.rows, kMaxItemRows);
  size_t before = 0;
  for (size_t e = 0; e < experts_; ++e) {
    before += (*p_.experts)[e].rows;
    fine_[e] = before * kFineShare > rows * (kFineShare - 1);
  }
  even_[static_cast<size_t>(Step::kGateUp)] = ceil_div(row_blocks * p_.intermediate, p_.threads * kItemsPerThread);
  even_[static_cast<size_t>(Step::kDown)] = ceil_div(row_blocks * p_.hidden, p_.threads * kItemsPerThread);
  for (size_t step = 0; step < kSteps; ++step) add_step(static_cast<Step>(step));
}

void WorkPlan::add_step(Step step) {
  const size_t s = static_cast<size_t>(step);
  uint32_t first = 0;
  const size_t count = step == Step::kCombine ? 1 : experts_;
  for (size_t e = 0; e < count; ++e) {
    Grid& grid = grids_[s * experts_ + e];
    grid = step == Step::kCombine ? combine() : make(step, e);
    grid.first = first;
    first += grid.items();
  }
  ends_[s] = (s ? ends_[s - 1] : 0) + first;
}

WorkPlan::Grid WorkPlan::make(Step step, size_t e) const {
  const ExpertLoad& load = (*p_.experts)[e];
  const size_t even = even_[static_cast<size_t>(step)];
  Grid grid = {};
  switch (step) {
    case Step::kGather: {
      if (!p_.gather) return grid;
      const size_t rows = round_up(ceil_div(kMinCopyElements, p_.hidden), load.gate_up.row_step);
      return {0, load.rows, u32(p_.hidden), u32(std::min<size_t>(rows, load.rows)), u32(p_.hidden), 1};
    }
    case Step::kGateUp:
      if (load.gate_up_items) return listed(load.gate_up_items);
      return matmul(load, load.gate_up, p_.intermediate, p_.hidden, even, fine_[e]);
    case Step::kFinishHidden: {
      if (!load.sums_gate_up()) return grid;
      const size_t units = std::min<size_t>(kMaxItemOutputs / 2, std::max<size_t>(256, kMinCopyElements / load.rows / 32 * 32));
      const size_t block = std::min(units, p_.intermediate);
      return {0, load.rows, u32(p_.intermediate), load.rows, u32(block), u32(ceil_div(p_.intermediate, block))};
    }
    case Step::kDown:
      if (load.down_items) return listed(load.down_items);
      return matmul(load, load.down, p_.hidden, p_.intermediate, even, fine_[e]);
    case Step::kCombine: break;
  }
  return grid;
}

WorkPlan::Grid WorkPlan::listed(uint32_t items) { return {0, items, 1, 1, 1, 1}; }

WorkPlan::Grid WorkPlan::combine() const {
  const size_t columns = std::max<size_t>(512, ceil_div(p_.hidden * p_.tokens, p_.threads * kItemsPerThread));
  const size_t rows = std::max<size_t>(1, columns / p_.hidden), width = std::min(columns, p_.hidden);
  return {0, u32(p_.tokens), u32(p_.hidden), u32(std::min(rows, p_.tokens)), u32(width), u32(ceil_div(p_.hidden, width))};
}

WorkPlan::Grid WorkPlan::matmul(const ExpertLoad& load, const MatmulForm& form, size_t n, size_t k, size_t even,
                                bool fine) const {
  if (form.cut_k) {
    const size_t chunk = std::min<size_t>(chunk_inputs(form, load.rows, k), k);
    return {0, load.rows, u32(k), load.rows, u32(chunk), u32(ceil_div(k, chunk))};
  }
  const size_t rows = std::min<size_t>(load.rows, round_up(ceil_div(load.rows, ceil_div(load.rows, kMaxItemRows)), form.row_step));
  const size_t most = std::min<size_t>(form.n_most, kMaxItemOutputs / rows);
  const size_t share = form.wide ? even * (kItemsPerThread / kWideItemsPerThread) / (fine ? kWideFineness : 1)
                                 : even / (fine ? kFineness : 1);
  const size_t steps = std::max<size_t>(1, std::min(ceil_div(share, form.n_step), most / form.n_step));
  // Equal blocks rather than a small last one.
  const size_t block = std::min(round_up(ceil_div(n, ceil_div(n, steps * form.n_step)), form.n_step), n);
  return {0, load.rows, u32(n), u32(rows), u32(block), u32(ceil_div(n, block))};
}

uint32_t WorkPlan::event(Step step, size_t expert) const {
  switch (step) {
    case Step::kGather:
    case Step::kGateUp:
    case Step::kFinishHidden: return u32(static_cast<size_t>(step) * experts_ + expert);
    case Step::kDown: return u32(3 * experts_);
    case Step::kCombine: return kNoEvent;
  }
  return kNoEvent;
}

void WorkPlan::set_wait(WorkItem* item) const {
  size_t before = static_cast<size_t>(item->step);
  uint32_t count = 0;
  if (item->step == Step::kCombine) {
    --before;
    count = u32(ends_[before] - ends_[before - 1]);
  } else {
    while (before > 0 && count == 0) count = grids_[--before * experts_ + item->expert].items();
  }
  item->wait_event = count ? event(static_cast<Step>(before), item->expert) : kNoEvent;
  item->wait_count = count;
}

size_t WorkPlan::first_item(Step step, size_t expert) const {
  const size_t s = static_cast<size_t>(step);
  return (s ? ends_[s - 1] : 0) + grid(step, expert).first;
}

WorkItem WorkPlan::item(size_t i) const {
  const size_t s = static_cast<size_t>(std::upper_bound(ends_, ends_ + kSteps, i) - ends_);
  if (s) i -= ends_[s - 1];
  const Step step = static_cast<Step>(s);
  const Grid* first = grids_.data() + s * experts_;
  const Grid* last = first + (step == Step::kCombine ? 1 : experts_);
  // The last one that begins at or before i: those without items begin where the next one does.
  const Grid& g = *(std::upper_bound(first, last, i, [](size_t at, const Grid& grid) { return at < grid.first; }) - 1);
  const uint32_t local = u32(i) - g.first, row = local / g.across * g.row_block, begin = local % g.across * g.column_block;
  WorkItem item = {step, u32(static_cast<size_t>(&g - first)), row, std::min(g.row_block, g.rows - row), begin,
                   std::min(g.column_block, g.columns - begin), kNoEvent, 0, 0};
  item.signal_event = event(step, item.expert);
  set_wait(&item);
  return item;
}

}  // namespace ort_hina::plan
