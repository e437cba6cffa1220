// From loads to work items, pure arithmetic. Items are claimed in order; an item may wait for an event only if every item that
// signals it comes before it, so a thread waits for claimed work only. No list is made: an item is worked out from its number,
// so planning costs a few operations for each active expert, however many tokens there are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::plan {

// How a matmul may be cut without changing any output's bits; see kernels::Cut.
struct MatmulForm {
  bool cut_k = false;
  uint32_t n_step = 1;
  bool wide = false;             // items should have many outputs
  uint32_t n_most = UINT32_MAX;  // outputs whose weights an item can hold
  uint32_t k_chunk = 0;          // of a form that is cut along K
  uint32_t row_step = 1;         // a block of rows is a multiple of this, the last one excepted
};

struct ExpertLoad {
  uint32_t begin;  // first sorted slot
  uint32_t rows;   // tokens
  MatmulForm gate_up;
  MatmulForm down;
  // Where weights are cut by the nodes that they lie on (plan/node_partition.h): items of such a cut, which leave partial sums.
  // Numbered in WorkItem::row. 0: cut here.
  uint32_t gate_up_items = 0;
  uint32_t down_items = 0;

  bool sums_gate_up() const { return gate_up.cut_k || gate_up_items; }
};

struct Problem {
  const std::vector<ExpertLoad>* experts;  // of none, the weighted sums are still to be done
  size_t tokens;
  size_t hidden;
  size_t intermediate;
  bool gather;  // the tokens of each expert are first copied together
  size_t threads;
};

enum class Step : uint8_t {
  kGather,        // expert's rows [row, row+rows)
  kGateUp,        // expert's rows × outputs [begin, begin+count), or all outputs × inputs [begin, begin+count) (cut along K)
  kFinishHidden,  // expert's rows × hidden units [begin, begin+count) from the chunks of a gate/up that was cut along K
  kDown,          // as kGateUp
  kCombine,       // tokens [row, row+rows) × outputs [begin, begin+count)
};
constexpr size_t kSteps = 5;

constexpr uint32_t kNoEvent = UINT32_MAX;

struct WorkItem {
  Step step;
  uint32_t expert;     // index into Problem::experts
  uint32_t row, rows;  // of the expert, or (kCombine) of all tokens
  uint32_t begin, count;
  uint32_t wait_event, wait_count;  // runs once this event has been signalled so often
  uint32_t signal_event;
};

// The most floats that one item of a matmul cut along N produces: they and a panel of weights share L2.
constexpr size_t kMaxItemOutputs = 32768;
// The most tokens of one item: enough that filling a weight panel costs a percent or two of its use.
constexpr size_t kMaxItemRows = 256;

// Inputs of a chunk when `rows` tokens share the stream of k inputs: the partial sums stay a small fraction of the weights.
// The answer depends on the shape alone, not on threads, so neither do the bits.
uint32_t chunk_inputs(const MatmulForm& form, uint32_t rows, size_t k);
uint32_t chunk_count(const MatmulForm& form, uint32_t rows, size_t k);

class WorkPlan {
 public:
  void build(const Problem& problem);
  size_t items() const { return ends_[kSteps - 1]; }
  uint32_t events() const { return static_cast<uint32_t>(3 * experts_ + 1); }
  WorkItem item(size_t i) const;
  // Of one step of an expert (of kCombine: 0): its first item's number, and how many there are, one after the other.
  size_t first_item(Step step, size_t expert) const;
  uint32_t items(Step step, size_t expert) const { return grid(step, expert).items(); }

  // The largest item of a step of an expert, for the scratch it needs.
  uint32_t most_rows(Step step, size_t expert) const { return grid(step, expert).row_block; }
  uint32_t most_count(Step step, size_t expert) const { return grid(step, expert).column_block; }

 private:
  // A step of one expert: `rows` × `columns`, cut into blocks.
  struct Grid {
    uint32_t first;  // number of its first item, counted from the step's first
    uint32_t rows, columns;
    uint32_t row_block, column_block;
    uint32_t across;  // blocks of columns
    uint32_t items() const;
  };

  const Grid& grid(Step step, size_t expert) const { return grids_[static_cast<size_t>(step) * experts_ + expert]; }
  void add_step(Step step);
  Grid make(Step step, size_t expert) const;
  Grid combine() const;
  static Grid listed(uint32_t items);
  Grid matmul(const ExpertLoad& load, const MatmulForm& form, size_t n, size_t k, size_t even, bool fine) const;
  uint32_t event(Step step, size_t expert) const;
  // What must be finished before this step of this expert.
  void set_wait(WorkItem* item) const;

  Problem p_ = {};
  size_t experts_ = 0;
  std::vector<Grid> grids_;  // [steps][experts]; of kCombine one only
  size_t ends_[kSteps] = {};
  size_t even_[kSteps] = {};       // outputs of an even share
  std::vector<uint8_t> fine_;      // experts whose items are smaller, since they come last
};

}  // namespace ort_hina::plan
