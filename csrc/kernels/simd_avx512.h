// 512-bit vectors (AVX-512 F, BW, DQ, VL). Included by the AVX-512 and AMX units, inside their namespaces.
struct Simd {
  static constexpr size_t kWidth = 16;
  // 8 × 3 accumulators, 3 weight vectors and a broadcast fill 28 of 32 registers. 12 × 2 needs as many, and a quarter more
  // loads.
  static constexpr int kGemmRows = 8;
  static constexpr int kGemmVectors = 3;
  static constexpr int kDotRows = 4;
  using F = __m512;

  static __mmask16 head(size_t n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_head(const float* p, size_t n) { return _mm512_maskz_loadu_ps(head(n), p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store_head(float* p, F x, size_t n) { _mm512_mask_storeu_ps(p, head(n), x); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // A NaN in x survives: the instruction returns its second operand.
  static F min(F limit, F x) { return _mm512_min_ps(limit, x); }
  static F max(F limit, F x) { return _mm512_max_ps(limit, x); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F pow2(F n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  // x·2^n, n integral
  static F times_pow2(F x, F n) { return _mm512_scalef_ps(x, n); }
  static float sum(F x) { return _mm512_reduce_add_ps(x); }

  // Lane i: the sum of the lanes of x(i), i < 16. A function, since of an array the compiler would make memory.
  template <class X>
  static F sums(const X& x) {
    const F a = sums_of_quarters(x(0), x(1), x(2), x(3)), b = sums_of_quarters(x(4), x(5), x(6), x(7));
    const F c = sums_of_quarters(x(8), x(9), x(10), x(11)), d = sums_of_quarters(x(12), x(13), x(14), x(15));
    const F low = add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    const F high = add(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
    return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
  }
  // In each quarter, the sums of that quarter of a, b, c and d.
  static F sums_of_quarters(F a, F b, F c, F d) {
    const __m512d ab = _mm512_castps_pd(add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d cd = _mm512_castps_pd(add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  }

  // The largest lane, of lanes that are not NaN.
  static float largest(F x) { return _mm512_reduce_max_ps(x); }
  // Bit i: whether it holds of lane i. Never of NaN.
  static uint32_t equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static uint32_t greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  // x where a > b, y elsewhere and where one is NaN.
  static F where_greater(F a, F b, F x, F y) { return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x); }
  // The first n lanes of x, the others of rest.
  static F first(F x, size_t n, F rest) { return _mm512_mask_mov_ps(rest, head(n), x); }

  static F from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
  static F from_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static __m256i load16(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static __m256i load16_head(const void* p, size_t n) { return _mm256_maskz_loadu_epi16(head(n), p); }
  static F load_f16(const void* p) { return from_f16(load16(p)); }
  static F load_f16_head(const void* p, size_t n) { return from_f16(load16_head(p, n)); }
  static F load_bf16(const void* p) { return from_bf16(load16(p)); }
  static F load_bf16_head(const void* p, size_t n) { return from_bf16(load16_head(p, n)); }

  static void store_f16_head(void* p, F x, size_t n) {
    _mm256_mask_storeu_epi16(p, head(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_bf16_head(void* p, F x, size_t n) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i r = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_mask_storeu_epi16(p, head(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
  }

  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(F* r) {
    F t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 2]);
      const __m512d c = _mm512_castps_pd(t[i + 1]), d = _mm512_castps_pd(t[i + 3]);
      r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
      r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }
};

// Tiles of attention: 12 keys × 2 vectors of rows, 8 rows × 2 vectors of values, and what enters, in 32 registers.
constexpr int kScoreKeys = 12;
constexpr int kScoreVectors = 2;
constexpr int kValueRows = 8;
constexpr int kValueVectors = 2;
// Rows are in lanes of half a vector or of whole ones.
constexpr size_t kLeastLanes = 8;
