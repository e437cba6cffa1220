// From loads to a list of work items, pure arithmetic. Items are claimed in the order of the list; an item may wait for an
// event only if every item that signals it stands before it, so a thread waits for claimed work only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::plan {

// How a matmul may be cut without changing any output's bits; see kernels::Cut.
struct MatmulForm {
  bool cut_k = false;
  uint32_t n_step = 1;
  uint32_t n_most = UINT32_MAX;  // outputs whose weights an item can hold
  uint32_t k_chunk = 0;          // of a form that is cut along K
};

struct ExpertLoad {
  uint32_t begin;  // first sorted slot
  uint32_t rows;   // tokens
  MatmulForm gate_up;
  MatmulForm down;
};

struct Problem {
  const std::vector<ExpertLoad>* experts;
  size_t tokens;
  size_t slots;
  size_t hidden;
  size_t intermediate;
  bool gather;  // the tokens of each expert are first copied together
  size_t threads;
};

enum class Step : uint8_t {
  kGather,        // rows [row, row+rows) of the sorted tokens
  kGateUp,        // expert's rows × outputs [begin, begin+count), or all outputs × inputs [begin, begin+count) (cut along K)
  kFinishHidden,  // expert's rows × hidden units [begin, begin+count) from the chunks of a gate/up that was cut along K
  kDown,          // as kGateUp
  kCombine,       // tokens [row, row+rows) × outputs [begin, begin+count)
};

constexpr uint32_t kNoEvent = UINT32_MAX;

struct WorkItem {
  Step step;
  uint32_t expert;  // index into Problem::experts
  uint32_t row, rows;
  uint32_t begin, count;
  uint32_t wait_event, wait_count;  // runs once this event has been signalled so often
  uint32_t signal_event;
};

struct WorkList {
  std::vector<WorkItem> items;
  uint32_t events = 0;
};

// The most floats that one item of a matmul cut along N produces: they and a panel of weights share L2.
constexpr size_t kMaxItemOutputs = 32768;
// The most tokens of one item: enough that filling a weight panel costs a percent or two of its use.
constexpr size_t kMaxItemRows = 256;

// Inputs of a chunk when `rows` tokens share the stream of k inputs: the partial sums stay a small fraction of the weights.
// The answer depends on the shape alone, not on threads, so neither do the bits.
uint32_t chunk_inputs(const MatmulForm& form, uint32_t rows, size_t k);
uint32_t chunk_count(const MatmulForm& form, uint32_t rows, size_t k);

void plan_work(const Problem& problem, WorkList* list);

}  // namespace ort_hina::plan
