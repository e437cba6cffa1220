// Rotary position embedding of one head.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::operators {

// A row of `width` cosines and one of as many sines for each position; the first 2·width elements of a head are rotated.
struct RotaryTable {
  const void* cos = nullptr;  // [positions, width]; null: no rotation
  const void* sin = nullptr;
  DataType type = DataType::kF32;
  size_t positions = 0, width = 0;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + width)
};

// The angles of one position, in f32.
class Rotation {
 public:
  Rotation(const RotaryTable& table, const kernels::VectorOps& ops);

  // `position` is below table.positions.
  void set(size_t position);
  // Rotates the first elements of a head in place.
  void apply(float* head) const;

 private:
  const RotaryTable& table_;
  const kernels::VectorOps& ops_;
  std::vector<float> cos_, sin_;
};

}  // namespace ort_hina::operators
