// Tensors of a type that is known at run time only.
#pragma once
#include "kernels/kernel.h"

namespace ort_hina::operators {

inline const uint8_t* element_at(const void* data, size_t i, DataType type) {
  return static_cast<const uint8_t*>(data) + i * size_of(type);
}
inline uint8_t* element_at(void* data, size_t i, DataType type) { return static_cast<uint8_t*>(data) + i * size_of(type); }

// f32 to another type, rounded once.
inline void narrow(const kernels::VectorOps& ops, const float* from, size_t n, void* to, DataType type) {
  const kernels::CombineTerm term = {from, nullptr, 1.0f, 1, 0};
  ops.combine({&term, 1, n, to, type});
}

}  // namespace ort_hina::operators
