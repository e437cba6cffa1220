// 128-bit vectors in the compiler's own terms: NEON on aarch64, SSE2 on any x86-64. Included by kernels_portable.cc only,
// inside its namespace.
struct Simd {
  static constexpr size_t kWidth = 4;
  static constexpr int kGemmVectors = 2;
#if defined(__aarch64__)
  static constexpr int kGemmRows = 8;  // 8 × 2 accumulators of 32 registers
  static constexpr int kDotRows = 4;
#else
  static constexpr int kGemmRows = 6;  // 6 × 2 accumulators of 16 registers
  static constexpr int kDotRows = 2;
#endif
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));

  static F zero() { return F{0, 0, 0, 0}; }
  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    memcpy(&x, p, sizeof x);
    return x;
  }
  static F load_head(const float* p, size_t n) {
    F x = zero();
    memcpy(&x, p, 4 * n);
    return x;
  }
  static void store(float* p, F x) { memcpy(p, &x, sizeof x); }
  static void store_head(float* p, F x, size_t n) { memcpy(p, &x, 4 * n); }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  // A NaN in x survives: no comparison with it holds.
  static F min(F limit, F x) { return x > limit ? limit : x; }
  static F max(F limit, F x) { return x < limit ? limit : x; }
  // To the nearest integer for |x| < 2^22: the sum has no bits left for a fraction.
  static F round(F x) {
    const F magic = set1(12582912.0f);
    F shifted = x + magic;
    asm("" : "+m"(shifted));  // keeps the compiler from cancelling the two additions
    return shifted - magic;
  }
  static F pow2(F n) {
    const I biased = __builtin_convertvector(n, I) + 127;
    return reinterpret_cast<F>(biased << 23);
  }
  // x·2^n, n integral and -126 to 127
  static F times_pow2(F x, F n) { return mul(x, pow2(n)); }
  static float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }

  // The largest lane, of lanes that are not NaN.
  static float largest(F x) {
    const float a = x[0] < x[1] ? x[1] : x[0], b = x[2] < x[3] ? x[3] : x[2];
    return a < b ? b : a;
  }
  // Bit i: whether it holds of lane i. Never of NaN.
  static uint32_t bits(I holds) {
    const I bit = holds & I{1, 2, 4, 8};
    return static_cast<uint32_t>((bit[0] | bit[1]) | (bit[2] | bit[3]));
  }
  static uint32_t equal(F a, F b) { return bits(a == b); }
  static uint32_t greater(F a, F b) { return bits(a > b); }
  // x where a > b, y elsewhere and where one is NaN.
  static F where_greater(F a, F b, F x, F y) { return a > b ? x : y; }
  // The first n lanes of x, the others of rest.
  static F first(F x, size_t n, F rest) {
    for (size_t i = n; i < kWidth; ++i) x[i] = rest[i];
    return x;
  }

  static float widen_f16(uint16_t h) {
#if defined(__aarch64__)
    __fp16 x;
    memcpy(&x, &h, 2);
    return x;
#else
    // The exponent moves by 112 with a multiplication, which renormalises subnormals.
    uint32_t bits = static_cast<uint32_t>(h & 0x7fff) << 13;
    float x;
    memcpy(&x, &bits, 4);
    x *= 0x1p112f;
    memcpy(&bits, &x, 4);
    if ((h & 0x7c00) == 0x7c00) bits |= 0x7f800000;
    bits |= static_cast<uint32_t>(h & 0x8000) << 16;
    memcpy(&x, &bits, 4);
    return x;
#endif
  }
  static float widen_bf16(uint16_t h) {
    const uint32_t bits = static_cast<uint32_t>(h) << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
  static uint16_t narrow_f16(float x) {
#if defined(__aarch64__)
    const __fp16 h = static_cast<__fp16>(x);
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
    if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
    if (bits < 0x38800000) {  // subnormal: an addition aligns the last kept bit with f32's own
      float magnitude;
      memcpy(&magnitude, &bits, 4);
      magnitude += 0.5f;
      memcpy(&bits, &magnitude, 4);
      return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
#endif
  }
  static uint16_t narrow_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return static_cast<uint16_t>((bits | 0x400000) >> 16);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }

  template <float (*Widen)(uint16_t)>
  static F load16_head(const void* p, size_t n) {
    uint16_t h[4] = {};
    memcpy(h, p, 2 * n);
    return F{Widen(h[0]), Widen(h[1]), Widen(h[2]), Widen(h[3])};
  }
  static F load_f16(const void* p) { return load16_head<widen_f16>(p, 4); }
  static F load_f16_head(const void* p, size_t n) { return load16_head<widen_f16>(p, n); }
  static F load_bf16(const void* p) { return load16_head<widen_bf16>(p, 4); }
  static F load_bf16_head(const void* p, size_t n) { return load16_head<widen_bf16>(p, n); }

  template <uint16_t (*Narrow)(float)>
  static void store16_head(void* p, F x, size_t n) {
    const uint16_t h[4] = {Narrow(x[0]), Narrow(x[1]), Narrow(x[2]), Narrow(x[3])};
    memcpy(p, h, 2 * n);
  }
  static void store_f16_head(void* p, F x, size_t n) { store16_head<narrow_f16>(p, x, n); }
  static void store_bf16_head(void* p, F x, size_t n) { store16_head<narrow_bf16>(p, x, n); }

  static void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(F* r) {
    const F a = __builtin_shuffle(r[0], r[1], I{0, 4, 1, 5}), b = __builtin_shuffle(r[0], r[1], I{2, 6, 3, 7});
    const F c = __builtin_shuffle(r[2], r[3], I{0, 4, 1, 5}), d = __builtin_shuffle(r[2], r[3], I{2, 6, 3, 7});
    r[0] = __builtin_shuffle(a, c, I{0, 1, 4, 5});
    r[1] = __builtin_shuffle(a, c, I{2, 3, 6, 7});
    r[2] = __builtin_shuffle(b, d, I{0, 1, 4, 5});
    r[3] = __builtin_shuffle(b, d, I{2, 3, 6, 7});
  }
};

// Tiles of attention: 6 keys × 2 vectors of rows, 4 rows × 3 vectors of values, and what enters, in 16 registers.
constexpr int kScoreKeys = 6;
constexpr int kScoreVectors = 2;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 3;
constexpr size_t kLeastLanes = Simd::kWidth;
