// 256-bit vectors (AVX2, FMA, F16C). Included by kernels_avx2.cc only, inside its namespace.
struct Simd {
  static constexpr size_t kWidth = 8;
  // 6 × 2 accumulators, 2 weight vectors and a broadcast fill 15 of 16 registers.
  static constexpr int kGemmRows = 6;
  static constexpr int kGemmVectors = 2;
  static constexpr int kDotRows = 2;
  using F = __m256;

  static __m256i head(size_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_head(const float* p, size_t n) { return _mm256_maskload_ps(p, head(n)); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store_head(float* p, F x, size_t n) { _mm256_maskstore_ps(p, head(n), x); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // A NaN in x survives: the instruction returns its second operand.
  static F min(F limit, F x) { return _mm256_min_ps(limit, x); }
  static F max(F limit, F x) { return _mm256_max_ps(limit, x); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F pow2(F n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  // x·2^n, n integral and -126 to 127
  static F times_pow2(F x, F n) { return mul(x, pow2(n)); }
  static float sum(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  // The largest lane, of lanes that are not NaN.
  static float largest(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  // Bit i: whether it holds of lane i. Never of NaN.
  static uint32_t equal(F a, F b) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))); }
  static uint32_t greater(F a, F b) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ))); }
  // x where a > b, y elsewhere and where one is NaN.
  static F where_greater(F a, F b, F x, F y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
  // The first n lanes of x, the others of rest.
  static F first(F x, size_t n, F rest) { return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(head(n))); }

  static F from_f16(__m128i h) { return _mm256_cvtph_ps(h); }
  static F from_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  static __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  // There is no masked load of 16-bit elements: the head goes through a buffer.
  static __m128i load16_head(const void* p, size_t n) {
    alignas(16) uint16_t buffer[8] = {};
    memcpy(buffer, p, 2 * n);
    return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  static F load_f16(const void* p) { return from_f16(load16(p)); }
  static F load_f16_head(const void* p, size_t n) { return from_f16(load16_head(p, n)); }
  static F load_bf16(const void* p) { return from_bf16(load16(p)); }
  static F load_bf16_head(const void* p, size_t n) { return from_bf16(load16_head(p, n)); }

  static void store16_head(void* p, __m128i h, size_t n) {
    alignas(16) uint16_t buffer[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(buffer), h);
    memcpy(p, buffer, 2 * n);
  }
  static void store_f16_head(void* p, F x, size_t n) {
    store16_head(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  }
  static void store_bf16_head(void* p, F x, size_t n) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i r = _mm256_srli_epi32(
        _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan)), 16);
    store16_head(p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)), n);
  }

  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(F* r) {
    F t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      const F low = r[i], high = r[i + 4];
      r[i] = _mm256_permute2f128_ps(low, high, 0x20);
      r[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
  }
};

// Tiles of attention: 6 keys × 2 vectors of rows, 4 rows × 3 vectors of values, and what enters, in 16 registers.
constexpr int kScoreKeys = 6;
constexpr int kScoreVectors = 2;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 3;
constexpr size_t kLeastLanes = Simd::kWidth;
