// Weights of each element type, widened to f32 on the way into a register. Included inside an ISA namespace.
template <DataType T>
struct Weights {
  static constexpr size_t kSize = size_of(T);
  static Simd::F load(const uint8_t* p) {
    if constexpr (T == DataType::kF32) return Simd::load(reinterpret_cast<const float*>(p));
    if constexpr (T == DataType::kF16) return Simd::load_f16(p);
    if constexpr (T == DataType::kBF16) return Simd::load_bf16(p);
  }
  // The first n < kWidth elements; the other lanes are 0.
  static Simd::F load_head(const uint8_t* p, size_t n) {
    if constexpr (T == DataType::kF32) return Simd::load_head(reinterpret_cast<const float*>(p), n);
    if constexpr (T == DataType::kF16) return Simd::load_f16_head(p, n);
    if constexpr (T == DataType::kBF16) return Simd::load_bf16_head(p, n);
  }
};
