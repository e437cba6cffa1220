// Random numbers that are the same on every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::native_tests {

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  size_t between(size_t low, size_t high) { return low + bits() % (high - low + 1); }
  bool one_in(size_t n) { return bits() % n == 0; }
  // Nearly normal, between -2√3 and 2√3: the sum of four uniform numbers.
  float normal() {
    const uint64_t r = bits();
    const auto part = [&](int i) { return static_cast<int>(r >> 16 * i & 0xFFFF) - 0x8000; };
    const float unit = 1.0f / 37837.0f;  // 2^16/√12·2
    return static_cast<float>(part(0) + part(1) + part(2) + part(3)) * unit;
  }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[bits() % from.size()];
  }

 private:
  uint64_t state_;
};

}  // namespace ort_hina::native_tests
