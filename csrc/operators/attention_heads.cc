#include "operators/attention_heads.h"

#include "operators/attention_lengths.h"
#include "operators/elements.h"

namespace ort_hina::operators {

TokenHeads::TokenHeads(const AttentionInputs& in, const TokenRows& rows, const kernels::VectorOps& ops)
    : in_(in), rows_(rows), ops_(ops), rotation_(in.rotary, ops) {}

void TokenHeads::set(size_t batch, size_t token) {
  batch_ = batch;
  token_ = token;
  if (in_.rotary.width) rotation_.set(angles_of(in_, batch, token));
}

void TokenHeads::load(size_t head, float* to) const {
  ops_.widen(given(head), in_.type, in_.keys.size, 1.0f, to);
  if (in_.rotary.width) rotation_.apply(to);
}

bool TokenHeads::as_given() const { return in_.rotary.width == 0; }

const uint8_t* TokenHeads::given(size_t head) const {
  return element_at(rows_.data, rows_.place(batch_, token_, head), in_.type);
}

}  // namespace ort_hina::operators
