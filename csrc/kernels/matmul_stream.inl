// Few tokens, [K,N]: whole weight rows in the order in which they lie, eight at a time, the sums of all n outputs in L1.
// A column slice would read short runs a row apart, the worst order there is. Included inside an ISA namespace.

constexpr size_t kStreamRows = 8;
constexpr size_t kStreamTokens = 4;
// Far enough ahead in the stream that a line arrives in L2 before it is wanted; to L1 it would evict the sums.
constexpr size_t kStreamPrefetchBytes = 16384;

// C[t,:] = first ? A·W : C + A·W for `Rows` weight rows.
template <DataType T, int Tokens, int Rows>
inline void stream_block(const MatmulArgs& p, size_t k, size_t token, bool first) {
  constexpr size_t kW = Simd::kWidth;
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  const uint8_t* w = static_cast<const uint8_t*>(p.w) + k * row_bytes;
  const float* a = p.a + token * p.lda + k;
  float* c = p.c + token * p.ldc;
  for (size_t n = 0; n < p.n; n += kW) {
    const size_t count = p.n - n < kW ? p.n - n : kW;
    const bool whole = count == kW;
    Simd::F acc[Tokens];
    for (int t = 0; t < Tokens; ++t) {
      const float* sum = c + t * p.ldc + n;
      acc[t] = first ? Simd::zero() : whole ? Simd::load(sum) : Simd::load_head(sum, count);
    }
    for (int r = 0; r < Rows; ++r) {
      const uint8_t* row = w + r * row_bytes + n * Weights<T>::kSize;
      if (token == 0) Simd::prefetch_l2(row + kStreamPrefetchBytes);
      const Simd::F weight = whole ? Weights<T>::load(row) : Weights<T>::load_head(row, count);
      for (int t = 0; t < Tokens; ++t) acc[t] = Simd::fma(Simd::set1(a[t * p.lda + r]), weight, acc[t]);
    }
    for (int t = 0; t < Tokens; ++t) {
      float* sum = c + t * p.ldc + n;
      whole ? Simd::store(sum, acc[t]) : Simd::store_head(sum, acc[t], count);
    }
  }
}

template <DataType T, int Rows>
inline void stream_tokens(const MatmulArgs& p, size_t k, bool first) {
  for (size_t t = 0; t < p.m; t += kStreamTokens) switch (p.m - t) {
      case 1: stream_block<T, 1, Rows>(p, k, t, first); break;
      case 2: stream_block<T, 2, Rows>(p, k, t, first); break;
      case 3: stream_block<T, 3, Rows>(p, k, t, first); break;
      default: stream_block<T, 4, Rows>(p, k, t, first);
    }
}

template <DataType T>
void matmul_stream(const MatmulArgs& p) {
  size_t k = 0;
  for (; k + kStreamRows <= p.k; k += kStreamRows) stream_tokens<T, kStreamRows>(p, k, k == 0);
  for (; k < p.k; ++k) stream_tokens<T, 1>(p, k, k == 0);
}
