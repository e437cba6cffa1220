// One item of a matmul whose weights are cut by the nodes on which they lie (plan/node_partition.h), for any operator. It
// leaves partial sums; the caller sums them up in their order.
#pragma once
#include "operators/activations.h"
#include "operators/moe_config.h"
#include "plan/node_partition.h"

namespace ort_hina::operators {

struct NodeMatmul {
  const plan::NodePartition* partition;
  const plan::PiecePool* pool;
  const Matrix* weights;
  const kernels::MatmulKernel* kernel;
  const uint8_t* base;  // of the workspace that holds the activations
  Activations inputs;
  size_t tokens;
  float* sums;      // [parts][tokens][ld]: output n of token t in part p at sums[p·distance + t·ld + n]
  size_t ld, distance;
  size_t parts;     // at least partition->parts(); those that an item does not have are set to 0 by one of the others
};

// Bytes of scratch that any item of a matmul of so many tokens needs.
size_t node_scratch_bytes(const plan::NodePartition& partition, const kernels::MatmulKernel& kernel, size_t tokens);

// scratch: 64-byte aligned.
void run_node_item(const NodeMatmul& matmul, size_t item, uint8_t* scratch);

}  // namespace ort_hina::operators
