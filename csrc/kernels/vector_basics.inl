// What the other files of a level are written with: parts of vectors, the exponential, widening. Included inside an ISA
// namespace, after weight_load.inl.

constexpr float kInf = __builtin_inff();

inline Simd::F load_head_or_all(const float* p, size_t n) {
  return n == Simd::kWidth ? Simd::load(p) : Simd::load_head(p, n);
}

inline void store_head_or_all(float* p, Simd::F x, size_t n) {
  n == Simd::kWidth ? Simd::store(p, x) : Simd::store_head(p, x, n);
}

// e^x within 2 units in the last place; exact limits: overflow to Inf, underflow to 0, NaN stays.
inline Simd::F exp_f32(Simd::F x) {
  x = Simd::max(Simd::set1(-110.0f), Simd::min(Simd::set1(110.0f), x));
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  // ln 2 in two parts: the first has few bits, so n times it is exact.
  Simd::F r = Simd::fma(n, Simd::set1(-0.693359375f), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  // Taylor to r^7/7!: |r| <= 0.35, so what is left out is under 6e-9.
  const float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Simd::F p = Simd::set1(1.0f / 5040);
  for (float c : taylor) p = Simd::fma(p, r, Simd::set1(c));
  // 2^n in two factors, since n reaches ±159.
  const Simd::F half = Simd::round(Simd::mul(n, Simd::set1(0.5f)));
  return Simd::mul(Simd::mul(p, Simd::pow2(half)), Simd::pow2(Simd::sub(n, half)));
}

template <DataType T>
void widen_all(const void* from, size_t n, float scale, float* to) {
  const uint8_t* p = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    const size_t count = n - i < Simd::kWidth ? n - i : Simd::kWidth;
    const uint8_t* x = p + i * Weights<T>::kSize;
    const Simd::F wide = count == Simd::kWidth ? Weights<T>::load(x) : Weights<T>::load_head(x, count);
    store_head_or_all(to + i, Simd::mul(wide, Simd::set1(scale)), count);
  }
}

void widen(const void* from, DataType type, size_t n, float scale, float* to) {
  switch (type) {
    case DataType::kF32: return widen_all<DataType::kF32>(from, n, scale, to);
    case DataType::kF16: return widen_all<DataType::kF16>(from, n, scale, to);
    case DataType::kBF16: return widen_all<DataType::kBF16>(from, n, scale, to);
  }
}
