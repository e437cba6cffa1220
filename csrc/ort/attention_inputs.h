// The inputs of a GroupQueryAttention node, found, checked and measured.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <array>
#include <string>

#include "operators/attention.h"
#include "ort/input_tensor.h"

namespace ort_hina::ort {

// In order. All but the last are com.microsoft's.
enum AttentionInput : size_t {
  kQuery, kKey, kValue, kPastKey, kPastValue, kSeqlensK, kTotalSequenceLength, kCosCache, kSinCache, kPositionIds,
  kAttentionBias, kHeadSink, kKScale, kVScale, kQNormWeight, kKNormWeight, kQuerySeqlens, kAttentionMask, kAttentionInputs
};

// "input 3 (past_key)"
std::string attention_input_name(size_t input);

struct AttentionTensors {
  operators::AttentionInputs inputs;  // all but the pointers to present caches and output
  std::array<Buffer, kAttentionInputs> buffers;
};

// Throws std::invalid_argument where a type or shape does not fit; what an input is expected to be is said with the sizes
// that follow from those before it.
AttentionTensors read_attention_inputs(const Ort::KernelContext& context, const operators::AttentionRule& rule);

}  // namespace ort_hina::ort
