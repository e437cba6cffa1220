// One call of the MoE operator: its plan, its workspace, and the work of each item.
#pragma once
#include <vector>

#include "kernels/table.h"
#include "operators/moe.h"
#include "plan/routing.h"
#include "plan/work.h"

namespace ort_hina::operators {

// What an active expert needs in this call.
struct ActiveCall {
  const Expert* expert;
  const kernels::MatmulKernel* gate_up;
  const kernels::MatmulKernel* down;
  uint32_t gate_up_chunks;  // 1 if not cut along K
  uint32_t down_chunks;
  size_t gate_up_parts;  // offset, in floats, of its partial sums [chunks][rows][outputs] (cut along K only)
  size_t answers;        // offset, in floats, of its answers [chunks][rows][answer_stride]
  size_t answer_stride;
};

class MoeCall {
 public:
  MoeCall(const MoeConfig& config, Isa isa, const MoeInputs& inputs, const runtime::Pool& pool);
  void run(const Workspace& workspace);

 private:
  void plan();
  size_t lay_out();  // floats of workspace
  size_t scratch_floats() const;
  void participate(size_t participant);
  void execute(const plan::WorkItem& item, float* scratch) const;

  void gather(const plan::WorkItem& item) const;
  void gate_up(const plan::WorkItem& item, float* scratch) const;
  void gate_up_chunk(const plan::WorkItem& item) const;
  void finish_hidden(const plan::WorkItem& item, float* scratch) const;
  void down(const plan::WorkItem& item, float* scratch) const;
  void combine(const plan::WorkItem& item, float* scratch) const;

  size_t gate_up_outputs() const { return config_.gated ? 2 * config_.intermediate : config_.intermediate; }
  const float* token_row(size_t sorted) const;
  float routing_weight(size_t slot) const;

  const MoeConfig& config_;
  const Isa isa_;
  const MoeInputs in_;
  const runtime::Pool& pool_;
  const kernels::VectorOps& ops_;
  // One f32 token without a weight on the input: every expert reads the caller's row, however often it was chosen.
  const bool shared_row_;
  // Floats between the rows of tokens and of hidden units.
  const size_t token_stride_, hidden_stride_;

  // Kept by the calling thread between calls: a steady state allocates nothing for them.
  plan::Routing& routing_;
  plan::WorkList& work_;
  std::vector<plan::ExpertLoad>& loads_;
  std::vector<ActiveCall>& active_;

  // Where hidden units and the participants' scratch begin in the workspace, in floats. Gathered tokens begin it.
  size_t hidden_at_ = 0, scratch_at_ = 0;
  size_t scratch_floats_ = 0;  // of one participant
  float* base_ = nullptr;
  runtime::Event* events_ = nullptr;
  std::atomic<size_t> next_{0};
};

}  // namespace ort_hina::operators
