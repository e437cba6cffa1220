#include "operators/rotary.h"

#include "operators/elements.h"

namespace ort_hina::operators {
namespace {

// Elements i·step and i·step + distance are the two parts of pair i.
template <size_t Step>
void rotate(float* __restrict head, size_t distance, const float* __restrict cos, const float* __restrict sin, size_t width) {
  for (size_t i = 0; i < width; ++i) {
    const float a = head[i * Step], b = head[i * Step + distance];
    head[i * Step] = a * cos[i] - b * sin[i];
    head[i * Step + distance] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

Rotation::Rotation(const RotaryTable& table, const kernels::VectorOps& ops)
    : table_(table), ops_(ops), wide_(table.type == DataType::kF32 ? 0 : 2 * table.width) {}

void Rotation::set(size_t row) {
  const size_t place = row * table_.width;
  if (table_.type == DataType::kF32) {
    cos_ = static_cast<const float*>(table_.cos) + place;
    sin_ = static_cast<const float*>(table_.sin) + place;
    return;
  }
  float* const cos = wide_.data();
  float* const sin = cos + table_.width;
  ops_.widen(element_at(table_.cos, place, table_.type), table_.type, table_.width, 1.0f, cos);
  ops_.widen(element_at(table_.sin, place, table_.type), table_.type, table_.width, 1.0f, sin);
  cos_ = cos;
  sin_ = sin;
}

void Rotation::apply(float* head) const {
  if (table_.interleaved) rotate<2>(head, 1, cos_, sin_, table_.width);
  else rotate<1>(head, table_.width, cos_, sin_, table_.width);
}

}  // namespace ort_hina::operators
