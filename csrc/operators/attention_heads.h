// The heads of a new token's query or key, as attention takes them: in f32, turned to the token's position.
#pragma once
#include "operators/attention.h"
#include "operators/rotary.h"

namespace ort_hina::operators {

// One thread's: it holds the angles of the token at hand, which all its heads share.
class TokenHeads {
 public:
  TokenHeads(const AttentionInputs& in, const TokenRows& rows, const kernels::VectorOps& ops);

  // A token that is no padding.
  void set(size_t batch, size_t token);
  // Its head, keys.size elements.
  void load(size_t head, float* to) const;

  // Whether heads stay what they were given as, and where that is.
  bool as_given() const;
  const uint8_t* given(size_t head) const;

 private:
  const AttentionInputs& in_;
  const TokenRows& rows_;
  const kernels::VectorOps& ops_;
  Rotation rotation_;
  size_t batch_ = 0, token_ = 0;
};

}  // namespace ort_hina::operators
