// The heads of a new token's query or key, as attention takes them: in f32, normalised, turned to the token's position.
#pragma once
#include "operators/attention.h"
#include "operators/rms_norm.h"
#include "operators/rotary.h"

namespace ort_hina::operators {

// One thread's: it holds what all heads of the token at hand share.
class TokenHeads {
 public:
  // heads: of a token; norm: over each head or, if it is as wide as all of them, over the token; null: none.
  TokenHeads(const AttentionInputs& in, const TokenRows& rows, size_t heads, const RmsNorm* norm,
             const kernels::VectorOps& ops);

  // A token that is no padding.
  void set(size_t batch, size_t token);
  // Its head, keys.size elements.
  void load(size_t head, float* to) const;

  // Whether heads stay what they were given as, and where that is.
  bool as_given() const;
  const uint8_t* given(size_t head) const;

 private:
  bool norm_of_token() const { return norm_ && norm_->size() != in_.keys.size; }
  void widen(size_t head, float* to) const;
  float token_factor();

  const AttentionInputs& in_;
  const TokenRows& rows_;
  const size_t heads_;
  const RmsNorm* const norm_;
  const kernels::VectorOps& ops_;
  Rotation rotation_;
  std::vector<float> head_;  // scratch
  size_t batch_ = 0, token_ = 0;
  float factor_ = 1.0f;
};

}  // namespace ort_hina::operators
