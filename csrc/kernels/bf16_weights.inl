// Weights of each element type as bf16, 32 in a register, in order: those that are stored otherwise are rounded on the way.
// Included inside an ISA namespace with AVX512-BF16.
using Half = __m512bh;

inline Half half_of(__m512i x) { return (Half)x; }
inline __m512i bits_of(Half x) { return (__m512i)x; }
inline Half rounded(Simd::F low, Simd::F high) { return _mm512_cvtne2ps_pbh(high, low); }

template <DataType T>
struct HalfWeights {
  static constexpr size_t kSize = size_of(T);
  static constexpr size_t kWidth = 32;
  static Half load(const uint8_t* p) {
    if constexpr (T == DataType::kBF16) return half_of(_mm512_loadu_si512(p));
    else return rounded(Weights<T>::load(p), Weights<T>::load(p + Simd::kWidth * kSize));
  }
  // The first n < kWidth elements; the others are 0.
  static Half load_head(const uint8_t* p, size_t n) {
    if constexpr (T == DataType::kBF16) return half_of(_mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), p));
    else if (n < Simd::kWidth) return rounded(Weights<T>::load_head(p, n), Simd::zero());
    else return rounded(Weights<T>::load(p), Weights<T>::load_head(p + Simd::kWidth * kSize, n - Simd::kWidth));
  }
};

// acc + x[2i]·w[2i] + x[2i+1]·w[2i+1] for each of 16 pairs i.
inline Simd::F multiply_pairs(Half x, Half w, Simd::F acc) { return _mm512_dpbf16_ps(acc, x, w); }

// A pair of inputs, the same for all lanes.
inline Half broadcast_pair(const uint16_t* pair) {
  int32_t bits;
  memcpy(&bits, pair, sizeof bits);
  return half_of(_mm512_set1_epi32(bits));
}
