// One call of GroupQueryAttention. In one region the caches are first brought up to date, one item for each key/value head
// of each sequence, then units attend; a unit waits for its own head's cache only. Where the keys of a block of queries are
// cut into parts, the thread that finishes the last part merges them, in their order.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "operators/attention.h"
#include "plan/attention.h"

namespace ort_hina::operators {

class AttentionCall {
 public:
  AttentionCall(const AttentionInputs& in, const AttentionRule& rule, const kernels::VectorOps& ops);
  ~AttentionCall();

  void run(const runtime::Pool& pool);

 private:
  struct Scratch;

  void work(Scratch& scratch);
  void update_caches(size_t batch, size_t head, Scratch& scratch) const;
  void append(const Cache& cache, const TokenRows& tokens, bool rotates, size_t batch, size_t head, Scratch& scratch) const;
  void attend(const plan::AttentionUnit& unit, Scratch& scratch);
  void pack_queries(const plan::AttentionUnit& unit, Scratch& scratch) const;
  void set_ranges(const plan::AttentionUnit& unit, Scratch& scratch) const;
  kernels::AttentionState state_of(const plan::AttentionUnit& unit, Scratch& scratch);
  void finish(const plan::AttentionUnit& unit, const kernels::AttentionState* parts, Scratch& scratch) const;
  float sink_of(size_t head) const;

  const AttentionInputs& in_;
  const AttentionRule& rule_;
  const kernels::VectorOps& ops_;
  plan::AttentionProblem problem_;
  plan::AttentionPlan plan_;
  std::vector<float> sinks_;  // of each head; empty: none
  std::vector<std::unique_ptr<Scratch>> scratch_;  // of each thread, made before the region, which must not throw
  std::atomic<size_t> next_{0};
  std::unique_ptr<runtime::Event[]> updated_;    // of each sequence's head
  std::unique_ptr<std::atomic<uint32_t>[]> done_;  // parts of each block
  std::vector<size_t> partial_begin_;            // of each unit's rows among the partial ones
  std::vector<float> partials_;
};

}  // namespace ort_hina::operators
