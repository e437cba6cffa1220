#include "amx_emulator/products.h"

#include <immintrin.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "compile the emulator without -ffast-math"
#endif

#define AMX_EMU_SIMD __attribute__((target("avx2,fma,f16c"), noinline))

namespace ort_hina::amx_emulator {
namespace {

// SDM: FP32 multiply-adds with DAZ = FTZ = 1, rounded to nearest even; MXCSR is neither asked nor updated. The host's
// multiply-adds under such an MXCSR give the exact result for everything but NaNs: which operand's NaN wins would depend on
// how the compiler orders the operands. So elements that are NaN are computed again, one by one, in a fixed order: first
// source, second source, accumulator, made quiet. (The SDM leaves that order open: no test may depend on NaN payloads.)
class TmulRounding {
 public:
  TmulRounding() : saved_(_mm_getcsr()) { _mm_setcsr(kFlushNearestMasked); }
  ~TmulRounding() { _mm_setcsr(saved_); }
  TmulRounding(const TmulRounding&) = delete;
  TmulRounding& operator=(const TmulRounding&) = delete;

 private:
  static constexpr unsigned kFlushNearestMasked = 0x9FC0;
  unsigned saved_;
};

uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

float to_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

bool is_nan(uint32_t u) { return (u & 0x7FFFFFFF) > 0x7F800000; }
uint32_t quiet(uint32_t u) { return u | 0x00400000; }

AMX_EMU_SIMD uint32_t scalar_fma(uint32_t a, uint32_t b, uint32_t c) {
  if (is_nan(a)) return quiet(a);
  if (is_nan(b)) return quiet(b);
  if (is_nan(c)) return quiet(c);
  return bits(_mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(to_float(a)), _mm_set_ss(to_float(b)), _mm_set_ss(to_float(c)))));
}

AMX_EMU_SIMD uint32_t scalar_add(uint32_t a, uint32_t b) {
  if (is_nan(a)) return quiet(a);
  if (is_nan(b)) return quiet(b);
  return bits(_mm_cvtss_f32(_mm_add_ss(_mm_set_ss(to_float(a)), _mm_set_ss(to_float(b)))));
}

struct alignas(64) F32Tile {
  uint32_t v[kMaxRows][16];
};

enum class Half { kBf16, kFp16 };

// The numbers in the low and in the high halves of eight dwords. VCVTPH2PS converts subnormals exactly, whatever MXCSR says.
AMX_EMU_SIMD void split_fp16(__m256i dwords, __m256i* even, __m256i* odd) {
  const __m256i halves_apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                                0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i w = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(dwords, halves_apart), 0xD8);
  *even = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(w)));
  *odd = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256(w, 1)));
}

AMX_EMU_SIMD void split_bf16(__m256i dwords, __m256i* even, __m256i* odd) {
  *even = _mm256_slli_epi32(dwords, 16);
  *odd = _mm256_and_si256(dwords, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)));
}

// The even and the odd 16-bit elements of a tile, as FP32.
template <Half H>
AMX_EMU_SIMD void split(const uint8_t (*from)[kRowBytes], int rows, F32Tile* even, F32Tile* odd) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < 16; j += 8) {
      const __m256i dwords = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[r] + 4 * j));
      __m256i e, o;
      H == Half::kBf16 ? split_bf16(dwords, &e, &o) : split_fp16(dwords, &e, &o);
      _mm256_store_si256(reinterpret_cast<__m256i*>(even->v[r] + j), e);
      _mm256_store_si256(reinterpret_cast<__m256i*>(odd->v[r] + j), o);
    }
}

// The element that came out as NaN, again with a fixed choice of payload.
uint32_t nan_element(uint32_t c, const uint32_t* x0, const F32Tile& y0, const uint32_t* x1, const F32Tile& y1, int depth,
                     int n) {
  uint32_t s0 = 0, s1 = 0;
  for (int k = 0; k < depth; ++k) {
    s0 = scalar_fma(x0[k], y0.v[k][n], s0);
    s1 = scalar_fma(x1[k], y1.v[k][n], s1);
  }
  return scalar_add(c, scalar_add(s0, s1));
}

// C[m][n] += (Σ_k x0[m][k]·y0[k][n]) + (Σ_k x1[m][k]·y1[k][n]), each sum a chain of multiply-adds from zero in ascending k.
// All floating-point products have this form.
AMX_EMU_SIMD void two_chains(Rows c, const Dims& d, const F32Tile& x0, const F32Tile& y0, const F32Tile& x1,
                             const F32Tile& y1) {
  for (int m = 0; m < d.m; ++m) {
    alignas(32) uint32_t out[16];
    int nan_mask = 0;
    for (int n = 0; n < 16; n += 8) {
      __m256 s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
      for (int k = 0; k < d.k; ++k) {
        const __m256 v0 = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(y0.v[k] + n)));
        const __m256 v1 = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(y1.v[k] + n)));
        s0 = _mm256_fmadd_ps(_mm256_set1_ps(to_float(x0.v[m][k])), v0, s0);
        s1 = _mm256_fmadd_ps(_mm256_set1_ps(to_float(x1.v[m][k])), v1, s1);
      }
      const __m256 old = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c[m] + 4 * n)));
      const __m256 sum = _mm256_add_ps(old, _mm256_add_ps(s0, s1));
      nan_mask |= _mm256_movemask_ps(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)) << n;
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + n), _mm256_castps_si256(sum));
    }
    for (int n = 0; n < d.n; ++n) {
      if (!(nan_mask >> n & 1)) continue;
      uint32_t old;
      memcpy(&old, c[m] + 4 * n, 4);
      out[n] = nan_element(old, x0.v[m], y0, x1.v[m], y1, d.k, n);
    }
    memcpy(c[m], out, static_cast<size_t>(4 * d.n));
  }
}

template <Half H>
void dot_half(Rows c, Rows a, Rows b, const Dims& d) {
  F32Tile a_even, a_odd, b_even, b_odd;
  split<H>(a, d.m, &a_even, &a_odd);
  split<H>(b, d.k, &b_even, &b_odd);
  const TmulRounding rounding;
  two_chains(c, d, a_even, b_even, a_odd, b_odd);
}

void negate(F32Tile* tile, int rows) {
  for (int r = 0; r < rows; ++r)
    for (uint32_t& v : tile->v[r])
      if (!is_nan(v)) v ^= 0x80000000;
}

void widen_bytes(const uint8_t (*from)[kRowBytes], int rows, bool is_signed, int16_t (*to)[kRowBytes]) {
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < kRowBytes; ++j)
      to[r][j] = is_signed ? static_cast<int8_t>(from[r][j]) : static_cast<int16_t>(from[r][j]);
}

}  // namespace

void dot_bf16(Rows c, Rows a, Rows b, const Dims& d) { dot_half<Half::kBf16>(c, a, b, d); }
void dot_fp16(Rows c, Rows a, Rows b, const Dims& d) { dot_half<Half::kFp16>(c, a, b, d); }

void complex_fp16(Rows c, Rows a, Rows b, const Dims& d, bool imaginary) {
  F32Tile a_real, a_imaginary, b_real, b_imaginary;
  split<Half::kFp16>(a, d.m, &a_real, &a_imaginary);
  split<Half::kFp16>(b, d.k, &b_real, &b_imaginary);
  const TmulRounding rounding;
  if (imaginary) return two_chains(c, d, a_imaginary, b_real, a_real, b_imaginary);
  negate(&a_imaginary, d.m);
  two_chains(c, d, a_real, b_real, a_imaginary, b_imaginary);
}

AMX_EMU_SIMD void dot_int8(Rows c, Rows a, Rows b, const Dims& d, bool a_signed, bool b_signed) {
  alignas(32) int16_t wide_a[kMaxRows][kRowBytes], wide_b[kMaxRows][kRowBytes];
  widen_bytes(a, d.m, a_signed, wide_a);
  widen_bytes(b, d.k, b_signed, wide_b);
  for (int m = 0; m < d.m; ++m)
    for (int n = 0; n < d.n; n += 4) {  // four dwords of C at a time, two partial sums each
      __m256i sum = _mm256_setzero_si256();
      for (int k = 0; k < d.k; ++k) {
        int64_t quad;
        memcpy(&quad, &wide_a[m][4 * k], 8);
        const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(&wide_b[k][4 * n]));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi64x(quad), v));
      }
      alignas(32) uint32_t part[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(part), sum);
      for (int i = 0; i < 4 && n + i < d.n; ++i) {
        uint32_t dword;
        memcpy(&dword, c[m] + 4 * (n + i), 4);
        dword += part[2 * i] + part[2 * i + 1];
        memcpy(c[m] + 4 * (n + i), &dword, 4);
      }
    }
}

}  // namespace ort_hina::amx_emulator
