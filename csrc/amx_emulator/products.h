// The tile products, as the Intel SDM describes their arithmetic.
#pragma once
#include <stdint.h>

#include "amx_emulator/tile_state.h"

namespace ort_hina::amx_emulator {

// In dwords: C is m × n, A is m × k, B is k × n.
struct Dims {
  int m, k, n;
};

using Rows = uint8_t (*)[kRowBytes];

// C += A · B. Of C, nothing outside m × n is written. A and B are zero beyond their dimensions.
void dot_bf16(Rows c, Rows a, Rows b, const Dims& d);
void dot_fp16(Rows c, Rows a, Rows b, const Dims& d);
// The real or the imaginary part of a product of complex FP16 numbers.
void complex_fp16(Rows c, Rows a, Rows b, const Dims& d, bool imaginary);
// Four products of bytes to a dword, modulo 2^32.
void dot_int8(Rows c, Rows a, Rows b, const Dims& d, bool a_signed, bool b_signed);

}  // namespace ort_hina::amx_emulator
