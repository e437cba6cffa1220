// What a result may differ from float64.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/types.h"

namespace ort_hina::native_tests {

constexpr double kUnit = 0x1p-24;
constexpr double kSmallestNormal = 0x1p-126;

// The relative error of a float32 sum of products of `terms` terms, whatever the order: a term is multiplied once and takes
// part in at most terms - 1 additions, each within a factor 1 ± kUnit (Higham, Accuracy and Stability, lemma 3.1).
inline double gamma(size_t terms) {
  const double t = static_cast<double>(terms) * kUnit;
  return t / (1 - t);
}

// Instructions on bf16 take subnormal numbers for 0 and make subnormal results 0.
inline double flushed(size_t operations, double sum_of_factors) {
  return (static_cast<double>(2 * operations + 4) + sum_of_factors) * kSmallestNormal;
}

// Half the distance of neighbours of this magnitude in a type. bf16 instructions flush on conversion, too.
inline double rounding(double magnitude, DataType type) {
  switch (type) {
    case DataType::kF32: return std::max(magnitude * 0x1p-24, 0x1p-150);
    case DataType::kF16: return std::max(magnitude * 0x1p-11, 0x1p-25);
    case DataType::kBF16: return magnitude * 0x1p-8 + kSmallestNormal;
  }
  return 0;
}

}  // namespace ort_hina::native_tests
