// Memory of a call that is read and written: which tensors may share it.
#pragma once
#include <array>

#include "ort/attention_inputs.h"

namespace ort_hina::ort {

enum AttentionOutput : size_t { kOutput, kPresentKey, kPresentValue, kAttentionOutputs };

// Throws std::invalid_argument where an output lies in memory of an input or of another output: it would be overwritten
// while it is read. Present caches may lie where their own past lies, if both have one length.
void check_attention_buffers(const std::array<Buffer, kAttentionInputs>& inputs,
                             const std::array<Buffer, kAttentionOutputs>& outputs, size_t past_length,
                             size_t present_length);

}  // namespace ort_hina::ort
