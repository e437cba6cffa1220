#include "operators/activations.h"

#include <algorithm>

namespace ort_hina::operators {

using kernels::kBlockTokens;

namespace {

template <typename T>
void take_row(const T* from, T* to, const InputChoice& inputs, size_t padded) {
  if (inputs.step == 1) std::copy_n(from + inputs.first, inputs.count, to);
  else for (size_t i = 0; i < inputs.count; ++i) to[i] = from[inputs[i]];
  std::fill(to + inputs.count, to + padded, T{0});
}

// A block in lanes: pairs of inputs, 16 tokens beside each other.
void take_lanes(const uint16_t* from, uint16_t* to, const InputChoice& inputs, size_t padded) {
  const auto pair = [](size_t input) { return input / 2 * 2 * kBlockTokens + input % 2; };
  const bool whole_pairs = inputs.step == 1 && inputs.first % 2 == 0;
  const size_t copied = whole_pairs ? inputs.count / 2 * 2 : 0;
  std::copy_n(from + (copied ? pair(inputs.first) : 0), copied * kBlockTokens, to);
  for (size_t i = copied; i < padded; ++i) {
    uint16_t* const lane = to + pair(i);
    if (i < inputs.count) {
      const uint16_t* const source = from + pair(inputs[i]);
      for (size_t t = 0; t < kBlockTokens; ++t) lane[2 * t] = source[2 * t];
    } else {
      for (size_t t = 0; t < kBlockTokens; ++t) lane[2 * t] = 0;
    }
  }
}

}  // namespace

// Where rows lie a multiple of 4 KB apart, all rows of a tile fall into one set of L1 and evict each other, so a cache line is
// put between them.
size_t padded_row(size_t elements, size_t element_bytes) {
  const size_t bytes = align(elements * element_bytes);
  return (bytes % 1024 ? bytes : bytes + 64) / element_bytes;
}

Activations activations_of(const kernels::MatmulKernel& kernel, size_t inputs) {
  if (kernel.activations == DataType::kF32) return {0, padded_row(inputs, 4), DataType::kF32, 0};
  return {0, padded_row(kernels::padded_inputs(inputs), 2), DataType::kBF16, kernel.lanes_from};
}

size_t Activations::bytes(size_t rows) const {
  const bool rows_only = type == DataType::kF32 || lanes_from > kBlockTokens;
  return align((rows_only ? rows : round_up(rows, kBlockTokens)) * stride * size_of(type));
}

bool Activations::in_lanes(size_t block, size_t rows) const {
  return type == DataType::kBF16 && std::min(kBlockTokens, rows - block * kBlockTokens) >= lanes_from;
}

size_t Activations::place(size_t row, size_t input, size_t rows) const {
  const bool lanes = in_lanes(row / kBlockTokens, rows);
  return at + (row * stride + input * (lanes ? kBlockTokens : 1)) * size_of(type);
}

void take_inputs(const uint8_t* from_base, const Activations& from, uint8_t* to_base, const Activations& to, size_t rows,
                 const InputChoice& inputs) {
  if (from.type == DataType::kF32) {
    for (size_t row = 0; row < rows; ++row)
      take_row(reinterpret_cast<const float*>(from_base + from.place(row, 0, rows)),
               reinterpret_cast<float*>(to_base + to.place(row, 0, rows)), inputs, inputs.count);
    return;
  }
  const size_t padded = kernels::padded_inputs(inputs.count);
  for (size_t first = 0; first < rows; first += kBlockTokens) {
    const uint16_t* const block = reinterpret_cast<const uint16_t*>(from_base + from.place(first, 0, rows));
    uint16_t* const taken = reinterpret_cast<uint16_t*>(to_base + to.place(first, 0, rows));
    if (from.in_lanes(first / kBlockTokens, rows)) {
      take_lanes(block, taken, inputs, padded);
    } else {
      for (size_t t = 0; t < std::min(kBlockTokens, rows - first); ++t)
        take_row(block + t * from.stride, taken + t * to.stride, inputs, padded);
    }
  }
}

}  // namespace ort_hina::operators
