// How many keys each sequence of a batch has, and where its new tokens sit.
#pragma once
#include <algorithm>

#include "operators/attention.h"
#include "plan/attention.h"

namespace ort_hina::operators {

// Keys of a sequence, old and new.
inline size_t keys_of(const AttentionInputs& in, size_t batch) {
  return in.seqlens_k ? static_cast<size_t>(int64_t{in.seqlens_k[batch]} + 1) : in.total_length;
}

// Of its keys the last ones are new, as many as there are queries. A first prompt may have fewer: it is padded at its end.
inline plan::Sequence sequence_of(const AttentionInputs& in, size_t batch) {
  const size_t keys = keys_of(in, batch), rows = std::min(in.queries, keys);
  return {keys - rows, rows};
}

// Of a new token, for the rotation.
inline int64_t position_of(const AttentionInputs& in, size_t batch, size_t token) {
  if (in.position_ids) return in.position_ids[batch * in.queries + token];
  return static_cast<int64_t>(sequence_of(in, batch).past + token);
}

// The row of the tables of angles for a new token.
inline size_t angles_of(const AttentionInputs& in, size_t batch, size_t token) {
  if (in.rotary.per_token) return batch * in.rotary.batch_rows + token;
  return static_cast<size_t>(position_of(in, batch, token));
}

}  // namespace ort_hina::operators
