// Few tokens, [K,N]: whole weight rows in the order in which they lie, eight at a time, the sums of all n outputs in L1.
// A column slice would read short runs a row apart, the worst order there is. Included inside an ISA namespace.

constexpr size_t kStreamRows = 8;
constexpr size_t kStreamTokens = 4;

// C[t,:] = (First ? 0 : C) + A·W for `Rows` weight rows and n outputs, a multiple of the vector's width.
template <DataType T, int Tokens, int Rows, bool First>
__attribute__((noinline)) void stream_whole(const uint8_t* w, size_t row_bytes, const float* a, size_t lda, float* c, size_t ldc,
                                            size_t n, FetchAhead& next_rows) {
  constexpr size_t kW = Simd::kWidth, kLineElements = 64 / Weights<T>::kSize;
  FetchAhead next = next_rows;  // in registers
  for (size_t j = 0; j < n; j += kW, w += kW * Weights<T>::kSize, c += kW) {
    Simd::F acc[Tokens];
    for (int t = 0; t < Tokens; ++t) acc[t] = First ? Simd::zero() : Simd::load(c + t * ldc);
    for (int r = 0; r < Rows; ++r) {
      if (kW >= kLineElements || j % kLineElements == 0) next.line();
      const Simd::F weight = Weights<T>::load(w + r * row_bytes);
      for (int t = 0; t < Tokens; ++t) acc[t] = Simd::fma(Simd::set1(a[t * lda + r]), weight, acc[t]);
    }
    for (int t = 0; t < Tokens; ++t) Simd::store(c + t * ldc, acc[t]);
  }
  next_rows = next;
}

// The last outputs, fewer than a vector has.
template <DataType T>
void stream_edge(const uint8_t* w, size_t row_bytes, size_t rows, const float* a, size_t lda, float* c, size_t ldc,
                 size_t tokens, size_t n, bool first) {
  for (size_t t = 0; t < tokens; ++t) {
    Simd::F sum = first ? Simd::zero() : Simd::load_head(c + t * ldc, n);
    for (size_t r = 0; r < rows; ++r)
      sum = Simd::fma(Simd::set1(a[t * lda + r]), Weights<T>::load_head(w + r * row_bytes, n), sum);
    Simd::store_head(c + t * ldc, sum, n);
  }
}

template <DataType T, int Tokens, int Rows>
inline void stream_tokens(const MatmulArgs& p, size_t k, size_t t, size_t n, FetchAhead& next) {
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  const uint8_t* w = static_cast<const uint8_t*>(p.w) + k * row_bytes;
  const float* a = static_cast<const float*>(p.a) + t * p.lda + k;
  float* c = p.c + t * p.ldc;
  if (k == 0) stream_whole<T, Tokens, Rows, true>(w, row_bytes, a, p.lda, c, p.ldc, n, next);
  else stream_whole<T, Tokens, Rows, false>(w, row_bytes, a, p.lda, c, p.ldc, n, next);
}

template <DataType T, int Rows>
inline void stream_rows(const MatmulArgs& p, size_t k) {
  const size_t row_bytes = p.ldw * Weights<T>::kSize, whole = p.n / Simd::kWidth * Simd::kWidth;
  FetchAhead next = rows_ahead<T>(p, k + Rows, kStreamRows);
  for (size_t t = 0; t < p.m; t += kStreamTokens) switch (p.m - t) {
      case 1: stream_tokens<T, 1, Rows>(p, k, t, whole, next); break;
      case 2: stream_tokens<T, 2, Rows>(p, k, t, whole, next); break;
      case 3: stream_tokens<T, 3, Rows>(p, k, t, whole, next); break;
      default: stream_tokens<T, 4, Rows>(p, k, t, whole, next);
    }
  const uint8_t* edge = static_cast<const uint8_t*>(p.w) + k * row_bytes + whole * Weights<T>::kSize;
  if (whole < p.n)
    stream_edge<T>(edge, row_bytes, Rows, static_cast<const float*>(p.a) + k, p.lda, p.c + whole, p.ldc, p.m, p.n - whole,
                   k == 0);
}

template <DataType T>
void matmul_stream(const MatmulArgs& p) {
  rows_ahead<T>(p, 0, kStreamRows).all();
  size_t k = 0;
  for (; k + kStreamRows <= p.k; k += kStreamRows) stream_rows<T, kStreamRows>(p, k);
  for (; k < p.k; ++k) stream_rows<T, 1>(p, k);
}
