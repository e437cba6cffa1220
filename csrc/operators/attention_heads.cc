#include "operators/attention_heads.h"

#include "operators/attention_lengths.h"
#include "operators/elements.h"

namespace ort_hina::operators {

TokenHeads::TokenHeads(const AttentionInputs& in, const TokenRows& rows, size_t heads, const RmsNorm* norm,
                       const kernels::VectorOps& ops)
    : in_(in), rows_(rows), heads_(heads), norm_(norm), ops_(ops), rotation_(in.rotary, ops), head_(in.keys.size) {}

void TokenHeads::set(size_t batch, size_t token) {
  batch_ = batch;
  token_ = token;
  if (norm_of_token()) factor_ = token_factor();
  if (in_.rotary.width) rotation_.set(angles_of(in_, batch, token));
}

void TokenHeads::load(size_t head, float* to) const {
  const size_t size = in_.keys.size;
  widen(head, to);
  if (norm_of_token()) norm_->apply(to, size, head * size, factor_);
  else if (norm_) norm_->apply(to, size, 0, norm_->factor(sum_of_squares(to, size)));
  if (in_.rotary.width) rotation_.apply(to);
}

bool TokenHeads::as_given() const { return norm_ == nullptr && in_.rotary.width == 0; }

const uint8_t* TokenHeads::given(size_t head) const {
  return element_at(rows_.data, rows_.place(batch_, token_, head), in_.type);
}

void TokenHeads::widen(size_t head, float* to) const { ops_.widen(given(head), in_.type, in_.keys.size, 1.0f, to); }

float TokenHeads::token_factor() {
  float sum = 0.0f;
  for (size_t head = 0; head < heads_; ++head) {
    widen(head, head_.data());
    sum += sum_of_squares(head_.data(), head_.size());
  }
  return norm_->factor(sum);
}

}  // namespace ort_hina::operators
