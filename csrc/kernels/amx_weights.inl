// Weights on their way into tiles: 32 at a time as bf16, copied to whole tiles ([N,K]) or interleaved in pairs of inputs
// ([K,N]). Included inside an ISA namespace.

// 32 weights, those outside `mask` 0 and not read.
template <DataType T>
inline __m512i load_weights(const uint8_t* at, __mmask32 mask) {
  const __mmask16 low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
  if constexpr (T == DataType::kBF16) {
    return _mm512_maskz_loadu_epi16(mask, at);
  } else if constexpr (T == DataType::kF16) {
    const __m512 x = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(low, at));
    const __m512 y = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(high, at + 32));
    return (__m512i)_mm512_cvtne2ps_pbh(y, x);
  } else {
    const __m512 x = _mm512_maskz_loadu_ps(low, at);
    const __m512 y = _mm512_maskz_loadu_ps(high, at + 64);
    return (__m512i)_mm512_cvtne2ps_pbh(y, x);
  }
}

inline void store_line(uint8_t* to, __m512i x) { _mm512_store_si512(to, x); }

// Rows in scratch lie an odd number of cache lines apart, so that those of a tile do not share one set of L1.
constexpr size_t kCopiedRowBytes = kPanelInputs * sizeof(uint16_t) + 64;
constexpr size_t kCopiedTileBytes = kTileRows * kCopiedRowBytes;

// 16 rows of `inputs` elements as bf16, in whole steps; absent rows and inputs are 0.
template <DataType T>
void copy_rows(const uint8_t* from, size_t row_bytes, size_t rows, size_t inputs, uint8_t* to,
               size_t to_bytes = kCopiedRowBytes) {
  for (size_t r = 0; r < kTileRows; ++r) {
    const uint8_t* row = from + (r < rows ? r * row_bytes : 0);
    for (size_t i = 0; i < inputs; i += kBlockInputs) {
      const __mmask32 mask = r < rows ? head32(inputs - i) : 0;
      store_line(to + r * to_bytes + i * sizeof(uint16_t), load_weights<T>(row + i * size_of(T), mask));
    }
  }
}

// What becomes of 32 outputs: interleaving within 128-bit lanes is one shuffle for 16 pairs, and puts outputs
// 0–3, 8–11, 16–19, 24–27 into one tile and the others into the next. 16 outputs or fewer keep their order, in one tile.
enum class Outputs { kLow, kHigh, kPlain };
inline Outputs outputs_of(size_t column, size_t n) {
  if (column % 2) return Outputs::kHigh;
  return n - column * kTileOutputs > kTileOutputs ? Outputs::kLow : Outputs::kPlain;
}

// Inputs × outputs as tiles, step s of column c at to + c*column_bytes + s*kTileBytes; a pair of inputs of 32 outputs at a
// time. Rows of weights are read in the order in which they lie.
template <DataType T>
struct Interleaver {
  // Of weights, between their prefetch and their use. Far more would not stay in L2: at row distances of a power of two only
  // few of its sets are used.
  static constexpr size_t kRowsAhead = 64;

  const uint8_t* from = nullptr;
  size_t row_bytes = 0;
  size_t inputs = 0, outputs = 0;
  const uint8_t* after = nullptr;  // what will be wanted after this: its first rows are fetched at the end. Or null
  uint8_t* to = nullptr;
  size_t column_bytes = 0;
  size_t pairs_per_step = 0;
  size_t k = 0, n = 0;

  size_t pairs() const { return padded_inputs(inputs) / 2 * ((outputs + 2 * kTileOutputs - 1) / (2 * kTileOutputs)); }
  void step() { run(pairs_per_step); }
  void finish() { run(SIZE_MAX); }
  void run(size_t pairs) {
    for (; pairs && k < padded_inputs(inputs); --pairs) {
      prefetch();
      interleave();
      n += 2 * kTileOutputs;
      if (n < outputs) continue;
      n = 0;
      k += 2;
    }
  }

  void prefetch() const {
    const bool here = k + kRowsAhead < inputs;
    if (!here && !after) return;
    const uint8_t* row = here ? from + (k + kRowsAhead) * row_bytes : after + (k + kRowsAhead - inputs) * row_bytes;
    for (size_t i = 0; i < 2; ++i)
      for (size_t line = 0; line < 2 * kTileOutputs * size_of(T); line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(row + i * row_bytes + n * size_of(T) + line), _MM_HINT_T1);
  }
  void interleave() const {
    const uint8_t* row = from + k * row_bytes + n * size_of(T);
    const __mmask32 mask = head32(outputs - n);
    const __m512i x = load_weights<T>(row, k < inputs ? mask : 0);
    const __m512i y = load_weights<T>(row + row_bytes, k + 1 < inputs ? mask : 0);
    uint8_t* low = to + n / kTileOutputs * column_bytes + k / 2 * kTileRowBytes;
    if (outputs - n > kTileOutputs) {
      store_line(low, _mm512_unpacklo_epi16(x, y));
      store_line(low + column_bytes, _mm512_unpackhi_epi16(x, y));
      return;
    }
    const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    const __m512i second = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(y));
    store_line(low, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
  }
};
