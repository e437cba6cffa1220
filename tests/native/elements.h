// Scalar conversions, written independently of the kernels.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/types.h"

namespace ort_hina::native_tests {

inline uint32_t bits_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

inline float float_of(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline float from_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

// To nearest, ties to even. A NaN stays one.
inline uint16_t to_bf16(float f) {
  const uint32_t u = bits_of(f);
  if (std::isnan(f)) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

inline float from_f16(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

inline uint16_t to_f16(float f) {
  const uint16_t sign = static_cast<uint16_t>(bits_of(f) >> 16 & 0x8000);
  const float magnitude = std::fabs(f);
  if (std::isnan(f)) return sign | 0x7E00;
  if (magnitude >= 65520.0f) return sign | 0x7C00;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  // nearbyint() takes ties to even; a carry moves into the exponent by itself.
  const float steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  const int whole = static_cast<int>(steps) + (exponent + 14) * 1024;
  return sign | static_cast<uint16_t>(magnitude == 0 ? 0 : whole);
}

inline float load(const uint8_t* p, DataType type) {
  if (type == DataType::kF32) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  return type == DataType::kF16 ? from_f16(h) : from_bf16(h);
}

inline void store(uint8_t* p, DataType type, float f) {
  if (type == DataType::kF32) {
    std::memcpy(p, &f, 4);
    return;
  }
  const uint16_t h = type == DataType::kF16 ? to_f16(f) : to_bf16(f);
  std::memcpy(p, &h, 2);
}

// What is left of `f` in this type.
inline float rounded(float f, DataType type) {
  uint8_t bytes[4];
  store(bytes, type, f);
  return load(bytes, type);
}

}  // namespace ort_hina::native_tests
