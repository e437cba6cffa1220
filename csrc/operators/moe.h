// The MoE operator: plan, kernels, region. No ONNX Runtime types.
#pragma once
#include <functional>

#include "operators/kernel_choice.h"
#include "operators/moe_nodes.h"
#include "operators/sigmoid_gates.h"
#include "runtime/region.h"

namespace ort_hina::operators {

struct MoeInputs {
  const void* x;  // [tokens, hidden]
  DataType x_type;
  const void* ids;  // [tokens, k], int64 or int32. Null: every token goes to every expert, in order, and k is their number
  bool ids_are_64_bit;
  const void* weights;  // [tokens, k]. Null: all 1
  DataType weights_type;
  const void* addend;  // [tokens, hidden], x_type. Null: none
  size_t tokens, k;
  void* y;  // [tokens, hidden], x_type
};

// Memory for one call, 64-byte aligned, given back by the caller after it. Asked for once in a call, by whichever thread plans.
using Workspace = std::function<void*(size_t bytes)>;

// Holds no state of a call: run() may be entered by several threads at once.
class Moe {
 public:
  // `bf16_compute`: f32 and f16 weights, too, are multiplied as bf16 where the level has that.
  Moe(const MoeAttributes& attributes, const std::vector<Window>& windows, Isa level, bool bf16_compute)
      : config_(resolve(attributes, windows)), kernels_(level, bf16_compute), gates_(config_, level) {}

  const MoeConfig& config() const { return config_; }

  // From now on threads read what lies on their own NUMA node. `windows` as before; the maps are read here only. Not while
  // run() is.
  void share_out(const std::vector<Window>& windows, const Placement& placement) {
    nodes_ = std::make_unique<MoeNodes>(config_, windows, placement, kernels_);
  }

  // Throws std::invalid_argument where an id is out of range, or names a missing expert that may not be skipped.
  void run(const MoeInputs& inputs, const runtime::Pool& pool, const Workspace& workspace) const;

 private:
  MoeConfig config_;
  KernelChoice kernels_;
  SigmoidGates gates_;
  std::unique_ptr<MoeNodes> nodes_;  // null: nothing is shared out among nodes
};

}  // namespace ort_hina::operators
