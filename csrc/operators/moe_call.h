// One call of the MoE operator: its plan, its workspace, and the work of each item.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "operators/activations.h"
#include "operators/moe.h"
#include "operators/moe_nodes.h"
#include "operators/node_matmul.h"
#include "plan/routing.h"
#include "plan/work.h"

namespace ort_hina::operators {

// What an active expert needs in this call.
struct ActiveCall {
  const Expert* expert;
  const kernels::MatmulKernel* gate_up;
  const kernels::MatmulKernel* down;
  bool lanes;               // gate and up are left in lanes, and hidden units go from there
  uint32_t gate_up_chunks;  // partial sums of every output; 1 if not cut along K
  uint32_t down_chunks;
  const MoeNodes::ExpertPartition* nodes;  // null: not cut by NUMA nodes
  Activations tokens, hidden;
  size_t gate_up_parts;  // bytes; its partial sums, floats [chunks][rows][outputs], where there are any
  size_t answers;        // bytes; floats [chunks][rows][answer_stride]
  size_t answer_stride;
};

// Where the items that sum up keep what they need.
struct CombineScratch {
  kernels::CombineTerm* terms;  // [k + 1]
  float* weights;               // [k]
  float* biases;                // [k][columns]
  float* addend;                // [columns]
  float* x;                     // [hidden], for the sigmoid gates
  uint8_t* gates;               // theirs
  size_t bytes;
  CombineScratch(const MoeConfig& config, const SigmoidGates& gates, size_t k, uint8_t* begin);
};

class MoeCall {
 public:
  // `nodes`: null where there is nothing to share out among NUMA nodes.
  MoeCall(const MoeConfig& config, const KernelChoice& kernels, const SigmoidGates& gates, const MoeNodes* nodes,
          const MoeInputs& inputs, const runtime::Pool& pool);
  // Throws std::invalid_argument where an id is out of range, or names a missing expert that may not be skipped.
  void run(const Workspace& workspace);

 private:
  // Routing: who goes where. `visit` gets something whose [slot] is an id.
  template <typename Visit>
  auto with_ids(Visit visit) const;
  void count(size_t chunk);
  void place(size_t chunk);
  void check_ids() const;
  // After routing, by one thread: kernels, items and workspace.
  void prepare();
  void plan();
  ActiveCall plan_expert(const plan::ActiveExpert& active) const;
  plan::ExpertLoad load_of(const plan::ActiveExpert& active, ActiveCall* call) const;
  void queue_items();
  plan::Node node_of(plan::Step step, size_t expert, uint32_t item) const;
  size_t lay_out();  // bytes of workspace
  size_t scratch_bytes() const;
  size_t gate_up_scratch(size_t expert) const;
  size_t down_scratch(size_t expert) const;
  uint8_t* scratch_of(size_t participant) const { return base_ + scratch_at_ + participant * scratch_bytes_; }

  void participate(size_t participant);
  bool route_in_region(size_t i);  // whether there is a plan to work on
  size_t take_number() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void work_by_nodes(plan::Node node, uint8_t* scratch);
  void do_item(size_t number, uint8_t* scratch);
  void wait_for(const plan::WorkItem& item, uint8_t* scratch);
  void execute(const plan::WorkItem& item, uint8_t* scratch) const;

  void gather(const plan::WorkItem& item) const;
  void gather_row(const Activations& to, size_t sorted, size_t row, size_t rows) const;
  void gather_block(const Activations& to, size_t sorted, size_t row, size_t count, size_t rows) const;
  void gate_up(const plan::WorkItem& item, uint8_t* scratch) const;
  void gate_up_chunk(const plan::WorkItem& item, uint8_t* scratch) const;
  void activate_rows(const plan::WorkItem& item, float* bias_scratch, float* gate, const float* up, size_t width) const;
  void activate_lanes(const plan::WorkItem& item, float* bias_scratch, float* gate, const float* up, size_t width) const;
  void gate_up_of_node(const plan::WorkItem& item, uint8_t* scratch) const;
  NodeMatmul node_matmul(const plan::WorkItem& item, const kernels::MatmulKernel* kernel, const Activations& inputs) const;
  void finish_hidden(const plan::WorkItem& item, uint8_t* scratch) const;
  void pack_hidden(const ActiveCall& call, const plan::WorkItem& item, size_t row, size_t count, size_t rows, const float* h,
                   size_t ld) const;
  void down(const plan::WorkItem& item, uint8_t* scratch) const;
  void down_of_node(const plan::WorkItem& item, uint8_t* scratch) const;
  void combine(const plan::WorkItem& item, uint8_t* scratch) const;
  size_t combine_terms(const CombineScratch& scratch, size_t token, size_t begin, size_t n) const;  // how many
  void weigh(const CombineScratch& scratch, size_t token) const;

  size_t gate_up_outputs() const { return config_.gated ? 2 * config_.intermediate : config_.intermediate; }
  size_t padded_units(const plan::WorkItem& item) const;
  float routing_weight(size_t slot) const;
  const uint8_t* token(size_t slot) const;
  template <typename T>
  T* at(size_t bytes) const { return reinterpret_cast<T*>(base_ + bytes); }

  const MoeConfig& config_;
  const KernelChoice& kernels_;
  const SigmoidGates& gates_;
  const MoeNodes* const nodes_;
  const MoeInputs in_;
  const runtime::Pool& pool_;
  const kernels::VectorOps& ops_;
  const size_t slots_;
  // One token, and no expert chosen twice: all read the same row.
  bool one_token_ = false;
  // Of a large call the ids are counted and placed by several threads, as the first items of the region.
  const size_t chunks_;

  // Kept by the calling thread between calls: a steady state allocates nothing for them.
  plan::Routing& routing_;
  plan::WorkPlan& work_;
  std::vector<plan::ExpertLoad>& loads_;
  std::vector<ActiveCall>& active_;
  runtime::NodeQueues& queues_;
  std::unique_ptr<runtime::NodeClaims> claims_;  // null: items are taken in their order

  size_t scratch_at_ = 0, scratch_bytes_ = 0;  // of one participant
  uint8_t* base_ = nullptr;
  runtime::Event* events_ = nullptr;
  const Workspace* workspace_ = nullptr;
  std::atomic<size_t> next_{0};
  runtime::Event counted_{0}, planned_{0}, placed_{0};
  std::atomic<bool> bad_id_{false};
  std::exception_ptr failure_;  // written before `planned_` is signalled
};

}  // namespace ort_hina::operators
