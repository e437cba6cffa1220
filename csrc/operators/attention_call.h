// One call of GroupQueryAttention. In one region the caches are first brought up to date, then units attend; a unit waits for
// its own sequence's caches only. Where the keys of a block of queries are
// cut into parts, the thread that finishes the last part merges them, in their order.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "operators/attention.h"
#include "operators/attention_cache.h"
#include "plan/attention.h"
#include "runtime/node_claims.h"

namespace ort_hina::operators {

class AttentionCall {
 public:
  // placement: null where the caches' memory nodes are not regarded.
  AttentionCall(const AttentionInputs& in, const AttentionRule& rule, const kernels::VectorOps& ops,
                const KeyPlacement* placement);
  ~AttentionCall();

  void run(const runtime::Pool& pool);

 private:
  struct Scratch;
  struct HeadCaches;

  void read_sequences();
  std::unique_ptr<RmsNorm> norm_of(const HeadNorm& norm, size_t heads, float epsilon) const;
  // Numbers [begin, end) of what is to do: first the items of the caches, then units.
  struct Claim {
    size_t begin, end;
  };

  Claim claim();
  size_t share_of(size_t items, size_t threads) const;
  void queue_items();
  void queue_units();
  void participate(size_t participant);
  void work_in_order(Scratch& scratch);
  void work_by_nodes(plan::Node node, Scratch& scratch);
  void update_caches(size_t item, Scratch& scratch);
  void attend(const plan::AttentionUnit& unit, const plan::AttentionUnit* next, Scratch& scratch);
  HeadCaches caches_of(const plan::AttentionUnit& unit) const;
  void sum_keys(const plan::AttentionUnit& unit, const plan::AttentionUnit* next, const kernels::AttentionState& state,
                Scratch& scratch) const;
  void sum_keys_of_node(const plan::AttentionUnit& unit, const plan::AttentionUnit* next, kernels::AttendArgs args,
                        Scratch& scratch) const;
  const plan::KeyNodes::Keys& keys_of_node(const plan::AttentionUnit& unit) const;
  void fetch_next(const plan::AttentionUnit& next, kernels::AttendArgs* args) const;
  void pack_queries(const plan::AttentionUnit& unit, Scratch& scratch) const;
  void set_ranges(const plan::AttentionUnit& unit, Scratch& scratch) const;
  kernels::AttentionState state_of(const plan::AttentionUnit& unit, Scratch& scratch);
  void finish(const plan::AttentionUnit& unit, const kernels::AttentionState* parts, Scratch& scratch) const;
  float sink_of(size_t head) const;

  const AttentionInputs& in_;
  const AttentionRule& rule_;
  const kernels::VectorOps& ops_;
  const KeyPlacement* const placement_;
  plan::AttentionProblem problem_;
  std::vector<std::vector<kernels::KeyRange>> runs_;  // of the keys of each sequence that its mask lets be seen
  plan::AttentionPlan plan_;
  std::unique_ptr<RmsNorm> query_norm_, key_norm_;  // null: none
  std::vector<float> sinks_;  // of each head; empty: none
  std::vector<std::unique_ptr<Scratch>> scratch_;  // of each thread, made before the region, which must not throw
  std::atomic<size_t> next_{0};
  // Each key is in one unit, which sums old ones apart from new ones: so it may read them from the past, and the answer has the
  // same bits wherever that lies.
  bool old_apart_;
  std::unique_ptr<CacheUpdate> cache_;
  runtime::NodeQueues& queues_;                   // kept by the thread that runs the call
  std::unique_ptr<runtime::NodeClaims> claims_;   // null: in the order of their numbers
  std::vector<uint32_t> unit_order_;              // of units, by node
  std::vector<Claim> shares_;                     // of that order: what is claimed together
  std::unique_ptr<runtime::Event[]> updated_;    // items of each sequence's caches
  std::unique_ptr<std::atomic<uint32_t>[]> done_;  // parts of each block
  std::vector<size_t> partial_begin_;            // of each unit's rows among the partial ones
  std::vector<float> partials_;
};

}  // namespace ort_hina::operators
