// Few tokens, [N,K]: vectors along k, one accumulator for each (row, token), summed across lanes at the end. One weight row
// at a time is one sequential stream, which the hardware prefetcher follows best; with 2 to 4 tokens several rows share
// the loads of the activations. Included inside an ISA namespace.

// Tokens that share one pass over a weight row.
constexpr size_t kDotTokens = 4;

// `Fetch`: with several tokens the arithmetic takes long enough that the hardware's prefetcher falls behind, and it begins anew at
// each row that lies apart from the one before; one token's rows that follow each other it reads better alone.
template <DataType T, int Tokens, int Rows, int Unroll, bool Fetch>
__attribute__((noinline)) void dot_block(const float* a, size_t lda, const uint8_t* w, size_t row_bytes, size_t k, float* c,
                                         size_t ldc, FetchAhead& next_rows) {
  constexpr size_t kW = Simd::kWidth;
  Simd::F acc[Tokens][Rows][Unroll];
  for (int t = 0; t < Tokens; ++t)
    for (int r = 0; r < Rows; ++r)
      for (int u = 0; u < Unroll; ++u) acc[t][r][u] = Simd::zero();

  FetchAhead next = next_rows;  // in registers
  size_t i = 0;
  for (; i + Unroll * kW <= k; i += Unroll * kW)
    for (int u = 0; u < Unroll; ++u) {
      Simd::F weight[Rows];
      for (int r = 0; r < Rows; ++r) {
        const uint8_t* p = w + r * row_bytes + (i + u * kW) * Weights<T>::kSize;
        if (Fetch && (i + u * kW) * Weights<T>::kSize % 64 == 0) next.line();
        weight[r] = Weights<T>::load(p);
      }
      for (int t = 0; t < Tokens; ++t) {
        const Simd::F x = Simd::load(a + t * lda + i + u * kW);
        for (int r = 0; r < Rows; ++r) acc[t][r][u] = Simd::fma(x, weight[r], acc[t][r][u]);
      }
    }
  next_rows = next;
  for (; i < k; i += kW) {
    const size_t n = k - i < kW ? k - i : kW;
    for (int r = 0; r < Rows; ++r) {
      const uint8_t* p = w + r * row_bytes + i * Weights<T>::kSize;
      const Simd::F weight = n == kW ? Weights<T>::load(p) : Weights<T>::load_head(p, n);
      for (int t = 0; t < Tokens; ++t) {
        const Simd::F x = n == kW ? Simd::load(a + t * lda + i) : Simd::load_head(a + t * lda + i, n);
        acc[t][r][0] = Simd::fma(x, weight, acc[t][r][0]);
      }
    }
  }
  for (int t = 0; t < Tokens; ++t)
    for (int r = 0; r < Rows; ++r) {
      for (int u = Unroll / 2; u > 0; u /= 2)
        for (int v = 0; v < u; ++v) acc[t][r][v] = Simd::add(acc[t][r][v], acc[t][r][v + u]);
      c[t * ldc + r] = Simd::sum(acc[t][r][0]);
    }
}

// An output's order of summation depends on the number of tokens only, not on where a block of rows begins: the rows
// left over at the end use the same unrolling.
template <DataType T, int Tokens, int kRows, bool Fetch>
inline void dot_rows(const MatmulArgs& p, const uint8_t* w, size_t rows, const float* a, float* c, FetchAhead& next) {
  constexpr int kUnroll = 1;
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    dot_block<T, Tokens, kRows, kUnroll, Fetch>(a, p.lda, w + r * row_bytes, row_bytes, p.k, c + r, p.ldc, next);
  for (; r < rows; ++r)
    dot_block<T, Tokens, 1, kUnroll, Fetch>(a, p.lda, w + r * row_bytes, row_bytes, p.k, c + r, p.ldc, next);
}

template <DataType T, bool Fetch>
inline void dot_tokens(const MatmulArgs& p, const uint8_t* w, size_t rows, size_t t, float* c, FetchAhead& next) {
  const float* a = static_cast<const float*>(p.a) + t * p.lda;
  switch (p.m - t) {
    // Weights of the first pass come from memory: for one token as one stream, if rows follow each other. Later ones are in L1.
    case 1:
      if (Fetch && p.ldw == p.k) return dot_rows<T, 1, 1, false>(p, w, rows, a, c, next);
      return dot_rows<T, 1, 4, Fetch>(p, w, rows, a, c, next);
    case 2: return dot_rows<T, 2, 4, Fetch>(p, w, rows, a, c, next);
    case 3: return dot_rows<T, 3, Simd::kDotRows, Fetch>(p, w, rows, a, c, next);
    default: return dot_rows<T, 4, Simd::kDotRows, Fetch>(p, w, rows, a, c, next);
  }
}

template <DataType T>
void matmul_dot(const MatmulArgs& p) {
  constexpr size_t kRowGroup = 8;  // stays in L2 while the tokens pass
  const uint8_t* w = static_cast<const uint8_t*>(p.w);
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  for (size_t n = 0; n < p.n; n += kRowGroup) {
    const size_t rows = p.n - n < kRowGroup ? p.n - n : kRowGroup, after = n + rows;
    const uint8_t* group = w + n * row_bytes;
    const size_t left = p.n - after < kRowGroup ? p.n - after : kRowGroup;
    FetchAhead next = left ? FetchAhead(group + rows * row_bytes, left, p.k * Weights<T>::kSize, row_bytes)
                           : FetchAhead(p.next_w, rows, p.k * Weights<T>::kSize, row_bytes);
    dot_tokens<T, true>(p, group, rows, 0, p.c + n, next);
    for (size_t t = kDotTokens; t < p.m; t += kDotTokens) dot_tokens<T, false>(p, group, rows, t, p.c + t * p.ldc + n, next);
  }
}
