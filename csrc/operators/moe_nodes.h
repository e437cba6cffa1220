// How the weights of an MoE node are shared out among the machine's NUMA nodes.
#pragma once
#include <memory>
#include <vector>

#include "operators/kernel_choice.h"
#include "operators/moe_config.h"
#include "plan/node_partition.h"
#include "runtime/node_claims.h"

namespace ort_hina::operators {

// Where the windows lie, and the nodes of the threads that will read them.
struct Placement {
  std::vector<plan::PageMap> maps;  // of each window; an empty one: not known
  const runtime::ThreadNodes* threads;
  size_t thread_count;  // that a call is expected to have
};

// The matrices of experts that lie in each window.
std::vector<std::vector<plan::StoredMatrix>> stored_matrices(const MoeConfig& config, const std::vector<Window>& windows);

class MoeNodes {
 public:
  MoeNodes(const MoeConfig& config, const std::vector<Window>& windows, const Placement& placement, const KernelChoice& kernels);

  struct ExpertPartition {
    std::unique_ptr<plan::NodePartition> gate, up, down;  // up: null where there is none, or it is interleaved with gate
    uint32_t gate_up_parts() const { return std::max(gate->parts(), up ? up->parts() : 1); }
    uint32_t gate_up_items() const;
  };

  // Null where nothing is known of any of its windows.
  const ExpertPartition* of(size_t expert) const { return experts_[expert].get(); }
  // Whether so many tokens of an expert are few enough for partial sums: beyond that the weights are used so often that
  // reading them from elsewhere costs less.
  bool serves(const ExpertPartition& partition, size_t tokens) const;
  const plan::PiecePool& pool() const { return pool_; }
  const runtime::ThreadNodes& threads() const { return *threads_; }
  // Threads of each node that came to the last call.
  const std::atomic<uint32_t>* expected() const { return expected_.get(); }
  void expect(const runtime::NodeClaims& claims) const;

 private:
  std::unique_ptr<plan::NodePartition> cut(const Matrix& matrix, size_t outputs, size_t inputs, const std::vector<Window>& windows,
                                           const Placement& placement, const KernelChoice& kernels, plan::CutTiles* known);

  size_t hidden_, intermediate_;
  size_t element_;  // of the smaller weights
  const runtime::ThreadNodes* threads_;
  std::unique_ptr<std::atomic<uint32_t>[]> expected_;
  plan::PiecePool pool_;
  std::vector<std::unique_ptr<ExpertPartition>> experts_;
};

}  // namespace ort_hina::operators
