// The GroupQueryAttention operator: attributes, cache, kernel, region. No ONNX Runtime types.
#pragma once
#include <vector>

#include "kernels/kernel.h"
#include "operators/rotary.h"
#include "plan/key_nodes.h"
#include "runtime/node_claims.h"
#include "runtime/region.h"

namespace ort_hina::operators {

// As they stand in the node (docs/operators.md).
struct AttentionAttributes {
  int64_t num_heads = 0;
  int64_t kv_num_heads = 0;
  float scale = 0.0f;
  float softcap = 0.0f;
  int64_t local_window_size = -1;
  int64_t causal = 1;
  int64_t do_rotary = 0;
  int64_t rotary_interleaved = 0;
  int64_t smooth_softmax = -1;
  float qk_norm_epsilon = 1e-6f;
  // Absent: qk_norm_epsilon.
  float q_norm_epsilon = 1e-6f, k_norm_epsilon = 1e-6f;
};

// The same, checked.
struct AttentionRule {
  size_t heads = 0, kv_heads = 0;
  float scale = 0.0f;  // 0: 1 / sqrt(key_size)
  float softcap = 0.0f;
  size_t window = 0;  // 0: none
  bool causal = true;
  bool rotary = false, rotary_interleaved = false;
  bool smooth = false;
  float query_epsilon = 0.0f, key_epsilon = 0.0f;

  size_t group() const { return heads / kv_heads; }
};

// New tokens: element i of a head lies at [batch·batch_stride + token·token_stride + head·head_stride + i].
struct TokenRows {
  const void* data;
  size_t batch_stride, token_stride, head_stride;

  size_t place(size_t batch, size_t token, size_t head) const {
    return batch * batch_stride + token * token_stride + head * head_stride;
  }
};

// RMSNorm of new tokens before the rotation, over each head or over all heads of a token.
struct HeadNorm {
  const void* weight = nullptr;  // [size of a head], or [heads, size]; null: no norm
  DataType type = DataType::kF32;
  bool of_token = false;
};

// One of the caches: [batch, kv_heads, length, size]. `present` may be `past` itself, of the same length: only new rows are
// then written.
struct Cache {
  const void* past;  // null: none
  void* present;
  size_t past_length, present_length;
  size_t size;  // of a row: the head size
};

struct AttentionInputs {
  DataType type;  // of query, key, value, caches and output
  size_t batch, queries;
  TokenRows query, key, value;
  Cache keys, values;         // lengths of both are the same
  const int32_t* seqlens_k;   // [batch]: new and past keys, less 1; null: total_length keys each
  size_t total_length;        // total_sequence_length, or what stands for it
  bool total_is_mask_width;   // for messages
  const void* mask;           // [batch, total_length]; a key is seen only where it is not 0; null: everywhere
  size_t mask_bytes;          // of an element
  HeadNorm query_norm, key_norm;
  RotaryTable rotary;
  const int64_t* position_ids;  // [batch, queries]; null: they go on from the past
  const void* bias;             // null: none; rows of total_length elements
  DataType bias_type;
  size_t bias_batch_stride, bias_head_stride;  // elements; 0: the same for all
  const void* sink;                            // [heads]; null: none
  DataType sink_type;
  void* output;  // [batch, queries, heads, values.size]
};

// Whether past and present caches are the same memory.
inline bool in_place(const AttentionInputs& in) {
  return in.keys.past == in.keys.present && in.values.past == in.values.present;
}

// Where the keys and values of a call in place lie, and the nodes of the threads that will read them.
struct KeyPlacement {
  const std::vector<plan::KeyNodes>* heads;  // of each sequence
  const runtime::ThreadNodes* threads;
};

// Holds no state of a call: run() may be entered by several threads at once.
class Attention {
 public:
  // Throws std::invalid_argument where an attribute means nothing.
  Attention(const AttentionAttributes& attributes, Isa level);

  const AttentionRule& rule() const { return rule_; }

  // Throws std::invalid_argument where lengths or positions do not fit. Looks at no other data, and not at the pointers.
  void check(const AttentionInputs& inputs) const;

  // Checked inputs. `placement`: null, or of caches that are the same memory before and after the call.
  void run(const AttentionInputs& inputs, const runtime::Pool& pool, const KeyPlacement* placement = nullptr) const;

 private:
  AttentionRule rule_;
  const kernels::VectorOps& ops_;
};

}  // namespace ort_hina::operators
