// What seqlens_k says of each sequence of a batch.
#pragma once
#include <algorithm>

#include "operators/attention.h"
#include "plan/attention.h"

namespace ort_hina::operators {

// Of its keys the last ones are new, as many as there are queries. A first prompt may have fewer: it is padded at its end.
inline plan::Sequence sequence_of(const AttentionInputs& in, size_t batch) {
  const size_t keys = static_cast<size_t>(int64_t{in.seqlens_k[batch]} + 1), rows = std::min(in.queries, keys);
  return {keys - rows, rows};
}

// For the rotation of a new token.
inline int64_t position_of(const AttentionInputs& in, size_t batch, size_t token) {
  if (in.position_ids) return in.position_ids[batch * in.queries + token];
  return static_cast<int64_t>(sequence_of(in, batch).past + token);
}

}  // namespace ort_hina::operators
