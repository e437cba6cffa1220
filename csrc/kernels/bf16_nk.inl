// [N,K] with bf16 products. Blocks of tokens in lanes: a vector holds one input pair of 16 tokens, a pair of weights enters as
// a 4-byte broadcast from the row as it lies, and no sum crosses lanes. The last block, if it has few tokens, lies in rows and
// meets the same weight rows as dot products: they are in L1 by then, and 17 tokens cost little more than 16.
// Included inside an ISA namespace with AVX512-BF16.

// From this many tokens on a block in lanes, mostly empty, costs less than dot products.
constexpr uint32_t kLanesFrom = 11;
// Weight rows that lie a multiple of 4 KB apart share a set of L1, which has 8 ways: 6 rows leave room for the tokens.
constexpr int kLaneRows = 6;
constexpr int kLaneBlocks = 4;  // 6 × 4 accumulators, 4 token vectors and a broadcast fill 29 of 32 registers
// Rows that every token passes before the next ones are read: 2 × 6, or 3 × 4 for dot products.
constexpr size_t kRowGroup = 12;
// Tokens times inputs of a sweep over the rows: 256 KB of bf16, a quarter of a small L2.
constexpr size_t kSweepElements = 131072;
constexpr size_t kSweepLeastInputs = 512;
// Inputs whose weights are rounded at once into scratch, if they are not bf16.
constexpr size_t kRoundedInputs = 1024;

// Inputs of a group of weight rows.
struct RowPart {
  const uint8_t* w;
  size_t row_bytes;
  size_t inputs;
};

template <int Blocks, int Rows>
inline void lanes_step(const uint16_t* a, size_t block, const uint8_t* w, size_t row_bytes, Simd::F (&acc)[Blocks][Rows]) {
  Half x[Blocks];
  for (int b = 0; b < Blocks; ++b) x[b] = half_of(_mm512_load_si512(a + b * block));
  for (int r = 0; r < Rows; ++r) {
    const Half pair = broadcast_pair(reinterpret_cast<const uint16_t*>(w + r * row_bytes));
    for (int b = 0; b < Blocks; ++b) acc[b][r] = multiply_pairs(x[b], pair, acc[b][r]);
  }
}

// Sums of `Rows` outputs for `Blocks` blocks, in lanes: those of block b at c[b·c_block + 16·r].
template <int Blocks, int Rows, bool Fetch>
__attribute__((noinline)) void lanes_tile(const uint16_t* a, size_t block, const RowPart& part, float* c, size_t c_block,
                                          bool first, FetchAhead& next_rows) {
  constexpr int kChains = Blocks == 1 ? 2 : 1;  // one block alone has too few sums to hide an addition's latency
  constexpr size_t kLinePairs = 16;
  Simd::F acc[kChains][Blocks][Rows];
  for (int h = 0; h < kChains; ++h)
    for (int b = 0; b < Blocks; ++b)
      for (int r = 0; r < Rows; ++r) acc[h][b][r] = Simd::zero();

  const size_t pairs = part.inputs / 2;
  const uint8_t* w = part.w;
  FetchAhead next = next_rows;  // in registers
  size_t p = 0;
  for (; p + kLinePairs <= pairs; p += kLinePairs) {
    if constexpr (Fetch)
      for (int r = 0; r < Rows; ++r) next.line();
    for (size_t i = p; i < p + kLinePairs; i += kChains)
      for (int h = 0; h < kChains; ++h)
        lanes_step<Blocks, Rows>(a + (i + h) * 32, block, w + (i + h) * 4, part.row_bytes, acc[h]);
  }
  next_rows = next;
  for (; p < pairs; ++p) lanes_step<Blocks, Rows>(a + p * 32, block, w + p * 4, part.row_bytes, acc[0]);
  if (part.inputs % 2) {
    uint16_t last[Rows][2];
    for (int r = 0; r < Rows; ++r) {
      memcpy(&last[r][0], w + r * part.row_bytes + p * 4, 2);
      last[r][1] = 0;
    }
    lanes_step<Blocks, Rows>(a + p * 32, block, reinterpret_cast<const uint8_t*>(last), 4, acc[0]);
  }
  for (int b = 0; b < Blocks; ++b)
    for (int r = 0; r < Rows; ++r) {
      Simd::F sum = kChains == 2 ? Simd::add(acc[0][b][r], acc[kChains - 1][b][r]) : acc[0][b][r];
      float* to = c + b * c_block + 16 * r;
      Simd::store(to, first ? sum : Simd::add(Simd::load(to), sum));
    }
}

template <int Blocks, bool Fetch>
inline void lanes_rows(const uint16_t* a, size_t block, RowPart part, size_t rows, float* c, size_t c_block, bool first,
                       FetchAhead& next) {
  size_t r = 0;
  for (; r + kLaneRows <= rows; r += kLaneRows, part.w += kLaneRows * part.row_bytes)
    lanes_tile<Blocks, kLaneRows, Fetch>(a, block, part, c + 16 * r, c_block, first, next);
  for (; r < rows; ++r, part.w += part.row_bytes)
    lanes_tile<Blocks, 1, Fetch>(a, block, part, c + 16 * r, c_block, first, next);
}

template <bool Fetch>
inline void lanes_sweep(size_t blocks, const uint16_t* a, size_t block, const RowPart& part, size_t rows, float* c,
                        size_t c_block, bool first, FetchAhead& next) {
  switch (blocks) {
    case 1: return lanes_rows<1, Fetch>(a, block, part, rows, c, c_block, first, next);
    case 2: return lanes_rows<2, Fetch>(a, block, part, rows, c, c_block, first, next);
    case 3: return lanes_rows<3, Fetch>(a, block, part, rows, c, c_block, first, next);
    default: return lanes_rows<4, Fetch>(a, block, part, rows, c, c_block, first, next);
  }
}

// All blocks in lanes over one group of rows; the first sweep fetches what comes next.
inline void lanes_blocks(const uint16_t* a, size_t block, size_t blocks, const RowPart& part, size_t rows, float* c,
                         size_t c_block, bool first, FetchAhead& next) {
  size_t sweeps = (blocks + kLaneBlocks - 1) / kLaneBlocks;
  for (size_t b = 0, count; b < blocks; b += count, --sweeps) {
    count = (blocks - b + sweeps - 1) / sweeps;
    if (b == 0) lanes_sweep<true>(count, a, block, part, rows, c, c_block, first, next);
    else lanes_sweep<false>(count, a + b * block, block, part, rows, c + b * c_block, c_block, first, next);
  }
}

// The sums of the lanes of four vectors.
inline __m128 sum_four(Simd::F a, Simd::F b, Simd::F c, Simd::F d) {
  const Simd::F ab = Simd::add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Simd::F cd = Simd::add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const Simd::F sums = Simd::add(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Dot products of `Tokens` rows of activations with `Rows` weight rows.
template <DataType T, int Tokens, int Rows, int Unroll, bool Fetch>
__attribute__((noinline)) void half_dot(const uint16_t* a, size_t lda, const RowPart& part, float* c, size_t ldc, bool first,
                                        FetchAhead& next_rows) {
  using W = HalfWeights<T>;
  Simd::F acc[Unroll][Tokens][Rows];
  for (int u = 0; u < Unroll; ++u)
    for (int t = 0; t < Tokens; ++t)
      for (int r = 0; r < Rows; ++r) acc[u][t][r] = Simd::zero();
  FetchAhead next = next_rows;  // in registers
  size_t i = 0;
  for (; i + Unroll * W::kWidth <= part.inputs; i += Unroll * W::kWidth)
    for (int u = 0; u < Unroll; ++u) {
      const size_t k = i + u * W::kWidth;
      Half w[Rows];
      for (int r = 0; r < Rows; ++r) {
        if constexpr (Fetch)
          for (size_t line = 0; line < W::kWidth * W::kSize; line += 64) next.line();
        w[r] = W::load(part.w + r * part.row_bytes + k * W::kSize);
      }
      for (int t = 0; t < Tokens; ++t) {
        const Half x = half_of(_mm512_load_si512(a + t * lda + k));
        for (int r = 0; r < Rows; ++r) acc[u][t][r] = multiply_pairs(x, w[r], acc[u][t][r]);
      }
    }
  next_rows = next;
  for (; i < part.inputs; i += W::kWidth) {
    const size_t n = part.inputs - i;
    for (int r = 0; r < Rows; ++r) {
      const uint8_t* p = part.w + r * part.row_bytes + i * W::kSize;
      const Half w = n >= W::kWidth ? W::load(p) : W::load_head(p, n);
      for (int t = 0; t < Tokens; ++t)
        acc[0][t][r] = multiply_pairs(half_of(_mm512_load_si512(a + t * lda + i)), w, acc[0][t][r]);
    }
  }
  for (int t = 0; t < Tokens; ++t) {
    for (int u = Unroll / 2; u > 0; u /= 2)
      for (int v = 0; v < u; ++v)
        for (int r = 0; r < Rows; ++r) acc[v][t][r] = Simd::add(acc[v][t][r], acc[v + u][t][r]);
    Simd::F* s = acc[0][t];
    const Simd::F zero = Simd::zero();
    const __mmask8 mask = (1u << Rows) - 1;
    constexpr int kThird = Rows > 2 ? 2 : 0, kFourth = Rows > 3 ? 3 : 0;
    __m128 sum = Rows == 1 ? _mm_set_ss(Simd::sum(s[0]))
                           : sum_four(s[0], s[1], Rows > 2 ? s[kThird] : zero, Rows > 3 ? s[kFourth] : zero);
    float* to = c + t * ldc;
    if (!first) sum = _mm_add_ps(_mm_maskz_loadu_ps(mask, to), sum);
    _mm_mask_storeu_ps(to, mask, sum);
  }
}

template <DataType T, int Tokens, bool Fetch>
inline void half_dot_rows(const uint16_t* a, size_t lda, RowPart part, size_t rows, float* c, size_t ldc, bool first,
                          FetchAhead& next) {
  // Several tokens take longer than a stream needs, and several rows share the loads of their activations.
  constexpr int kRows = Tokens < 7 ? 4 : 3;
  constexpr int kUnroll = Tokens <= 2 ? 2 : 1;
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows, part.w += kRows * part.row_bytes)
    half_dot<T, Tokens, kRows, kUnroll, Fetch>(a, lda, part, c + r, ldc, first, next);
  for (; r < rows; ++r, part.w += part.row_bytes)
    half_dot<T, Tokens, 1, kUnroll, Fetch>(a, lda, part, c + r, ldc, first, next);
}

// One token's rows that follow each other are one stream, which the hardware's prefetcher follows best alone and row by row.
template <DataType T>
inline void half_dot_stream(const uint16_t* a, RowPart part, size_t rows, float* c, bool first, FetchAhead& next) {
  for (size_t r = 0; r < rows; ++r, part.w += part.row_bytes) half_dot<T, 1, 1, 2, false>(a, 0, part, c + r, 0, first, next);
}

template <DataType T, bool Fetch>
inline void half_dot_tokens(size_t tokens, const uint16_t* a, size_t lda, const RowPart& part, size_t rows, float* c,
                            size_t ldc, bool first, FetchAhead& next) {
  constexpr size_t kMost = 8;
  if (tokens > kMost) {
    const size_t half = tokens / 2;
    half_dot_tokens<T, Fetch>(half, a, lda, part, rows, c, ldc, first, next);
    return half_dot_tokens<T, false>(tokens - half, a + half * lda, lda, part, rows, c + half * ldc, ldc, first, next);
  }
  switch (tokens) {
    case 0: return;
    case 1:
      if (Fetch && part.row_bytes == part.inputs * HalfWeights<T>::kSize) return half_dot_stream<T>(a, part, rows, c, first, next);
      return half_dot_rows<T, 1, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 2: return half_dot_rows<T, 2, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 3: return half_dot_rows<T, 3, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 4: return half_dot_rows<T, 4, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 5: return half_dot_rows<T, 5, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 6: return half_dot_rows<T, 6, Fetch>(a, lda, part, rows, c, ldc, first, next);
    case 7: return half_dot_rows<T, 7, Fetch>(a, lda, part, rows, c, ldc, first, next);
    default: return half_dot_rows<T, 8, Fetch>(a, lda, part, rows, c, ldc, first, next);
  }
}

// Tokens [0, m) of lanes form at `from` (16 floats an output) into rows of c.
inline void rows_from_lanes(const float* from, size_t m, size_t n, float* c, size_t ldc) {
  for (size_t j = 0; j < n; j += 16) {
    const size_t outputs = n - j < 16 ? n - j : 16;
    Simd::F square[16];
    for (size_t i = 0; i < 16; ++i) square[i] = i < outputs ? Simd::load(from + (j + i) * 16) : Simd::zero();
    Simd::transpose(square);
    for (size_t t = 0; t < m; ++t)
      outputs == 16 ? Simd::store(c + t * ldc + j, square[t]) : Simd::store_head(c + t * ldc + j, square[t], outputs);
  }
}

// Rows [n, n+rows) and inputs [k, k+inputs), rounded to bf16 in scratch where they are not.
template <DataType T>
inline RowPart rounded_rows(const RowPart& part, size_t rows, uint16_t* scratch) {
  using W = HalfWeights<T>;
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < part.inputs; i += W::kWidth) {
      const uint8_t* p = part.w + r * part.row_bytes + i * W::kSize;
      const Half x = part.inputs - i >= W::kWidth ? W::load(p) : W::load_head(p, part.inputs - i);
      _mm512_store_si512(scratch + r * kRoundedInputs + i, bits_of(x));
    }
  return {reinterpret_cast<const uint8_t*>(scratch), kRoundedInputs * 2, part.inputs};
}

// Inputs of one sweep over all rows.
template <DataType T>
inline size_t sweep_inputs(const MatmulArgs& p) {
  size_t inputs = kSweepElements / (p.m + 1) / 32 * 32;
  if (inputs < kSweepLeastInputs) inputs = kSweepLeastInputs;
  if (p.m < kLanesFrom) inputs = p.k;
  else if (T != DataType::kBF16 && inputs > kRoundedInputs) inputs = kRoundedInputs;
  return inputs < p.k ? inputs : p.k;
}

// What comes after the group of rows before output n: the next one; after the last, the first of the next sweep or matrix.
template <DataType T>
inline FetchAhead group_ahead(const MatmulArgs& p, size_t k, size_t n, size_t sweep) {
  const uint8_t* w = static_cast<const uint8_t*>(p.w);
  if (n >= p.n) n = 0, k += sweep;
  if (k >= p.k) w = static_cast<const uint8_t*>(p.next_w), k = 0;
  const size_t rows = p.n - n < kRowGroup ? p.n - n : kRowGroup, inputs = p.k - k < sweep ? p.k - k : sweep;
  return {w ? w + (n * p.ldw + k) * size_of(T) : nullptr, rows, inputs * size_of(T), p.ldw * size_of(T)};
}

template <DataType T>
void matmul_lanes(const MatmulArgs& p) {
  const size_t tail = p.m % kBlockTokens;
  const size_t blocks = p.m / kBlockTokens + (tail >= kLanesFrom);
  const size_t dots = tail < kLanesFrom ? tail : 0;
  const size_t row_bytes = p.ldw * size_of(T), block = kBlockTokens * p.lda;
  const uint16_t* a = static_cast<const uint16_t*>(p.a);
  const uint8_t* w = static_cast<const uint8_t*>(p.w);
  uint16_t* rounded = static_cast<uint16_t*>(p.scratch);
  float* sums = p.c_lanes ? p.c : reinterpret_cast<float*>(rounded + (T == DataType::kBF16 ? 0 : kRowGroup * kRoundedInputs));
  const size_t c_block = kBlockTokens * (p.c_lanes ? p.ldc : p.n);
  const size_t sweep = sweep_inputs<T>(p);

  for (size_t k = 0; k < p.k; k += sweep) {
    const size_t inputs = p.k - k < sweep ? p.k - k : sweep;
    for (size_t n = 0; n < p.n; n += kRowGroup) {
      const size_t rows = p.n - n < kRowGroup ? p.n - n : kRowGroup;
      const RowPart part = {w + n * row_bytes + k * size_of(T), row_bytes, inputs};
      FetchAhead next = group_ahead<T>(p, k, n + kRowGroup, sweep);
      float* dot_sums = p.c + blocks * kBlockTokens * p.ldc + n;
      const uint16_t* dot_tokens = a + blocks * block + k;
      if (!blocks) {
        half_dot_tokens<T, true>(dots, dot_tokens, p.lda, part, rows, dot_sums, p.ldc, k == 0, next);
        continue;
      }
      const RowPart lanes = T == DataType::kBF16 ? part : rounded_rows<T>(part, rows, rounded);
      lanes_blocks(a + k * kBlockTokens, block, blocks, lanes, rows, sums + 16 * n, c_block, k == 0, next);
      half_dot_tokens<T, false>(dots, dot_tokens, p.lda, part, rows, dot_sums, p.ldc, k == 0, next);
    }
  }
  if (p.c_lanes) return;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t tokens = p.m - b * kBlockTokens < kBlockTokens ? p.m - b * kBlockTokens : kBlockTokens;
    rows_from_lanes(sums + b * c_block, tokens, p.n, p.c + b * kBlockTokens * p.ldc, p.ldc);
  }
}
