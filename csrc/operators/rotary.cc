#include "operators/rotary.h"

namespace ort_hina::operators {
namespace {

const void* row_of(const void* table, const RotaryTable& shape, size_t position) {
  return static_cast<const uint8_t*>(table) + position * shape.width * size_of(shape.type);
}

}  // namespace

Rotation::Rotation(const RotaryTable& table, const kernels::VectorOps& ops)
    : table_(table), ops_(ops), cos_(table.width), sin_(table.width) {}

void Rotation::set(size_t position) {
  ops_.widen(row_of(table_.cos, table_, position), table_.type, table_.width, 1.0f, cos_.data());
  ops_.widen(row_of(table_.sin, table_, position), table_.type, table_.width, 1.0f, sin_.data());
}

void Rotation::apply(float* head) const {
  const size_t step = table_.interleaved ? 2 : 1, distance = table_.interleaved ? 1 : table_.width;
  for (size_t i = 0; i < table_.width; ++i) {
    float& first = head[i * step];
    float& second = head[i * step + distance];
    const float a = first, b = second;
    first = a * cos_[i] - b * sin_[i];
    second = b * cos_[i] + a * sin_[i];
  }
}

}  // namespace ort_hina::operators
