// Rotary position embedding of one head.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"

namespace ort_hina::operators {

// A row of `width` cosines and one of as many sines for each position, or for each new token; the first 2·width elements of a
// head are rotated.
struct RotaryTable {
  const void* cos = nullptr;  // [positions, width] or [batch, tokens, width]
  const void* sin = nullptr;
  DataType type = DataType::kF32;
  size_t positions = 0;
  size_t width = 0;  // 0: no rotation
  bool per_token = false;
  size_t batch_rows = 0;     // per_token: rows between those of two sequences; 0: the same for all
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + width)
};

// The angles of one row of the tables, in f32.
class Rotation {
 public:
  Rotation(const RotaryTable& table, const kernels::VectorOps& ops);

  void set(size_t row);
  // Rotates the first elements of a head in place.
  void apply(float* head) const;

 private:
  const RotaryTable& table_;
  const kernels::VectorOps& ops_;
  std::vector<float> wide_;  // cosines, then sines, of tables that are not f32
  const float* cos_ = nullptr;
  const float* sin_ = nullptr;
};

}  // namespace ort_hina::operators
