// What the items of a MoE call keep in their scratch.
#pragma once
#include "operators/moe_call.h"

namespace ort_hina::operators {

// Columns of the weighted sum whose biases are widened at once.
constexpr size_t kBiasColumns = 512;

// Gate and up before the activation: rows of `width` floats in lanes or not, at the begin of an item's scratch.
struct GateUp {
  size_t step;   // 2: interleaved
  size_t width;  // floats of a row of each
  size_t up, bias, panel;  // where they begin, in floats
  GateUp(const Expert& expert, size_t rows, size_t count) {
    const size_t padded = round_up(rows, kernels::kBlockTokens);
    step = expert.interleaved ? 2 : 1;
    width = step * count;
    up = expert.interleaved ? 1 : round_up(padded * width, 16);
    bias = 2 * round_up(padded * count, 16);
    panel = bias + 2 * round_up(count, 16);
  }
};

}  // namespace ort_hina::operators
