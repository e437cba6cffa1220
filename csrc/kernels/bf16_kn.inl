// [K,N] with bf16 products: two weight rows, interleaved, hold the pairs of 32 outputs in two vectors; a token's pair enters as
// a 4-byte broadcast. The interleave works in quarters of a vector, so the two vectors hold outputs 0-3, 8-11, 16-19, 24-27
// and the rest; they are put in order once, when the sums leave. Included inside an ISA namespace with AVX512-BF16.

struct PairOfRows {
  Half low, high;
};

// Rows at p and p + row_bytes; without `second`, zeros for it. Outputs beyond n (<= 32) are 0.
template <DataType T>
inline PairOfRows interleave(const uint8_t* p, size_t row_bytes, bool second, size_t n) {
  using W = HalfWeights<T>;
  const __m512i a = bits_of(n == 32 ? W::load(p) : W::load_head(p, n));
  __m512i b = _mm512_setzero_si512();
  if (second) b = bits_of(n == 32 ? W::load(p + row_bytes) : W::load_head(p + row_bytes, n));
  return {half_of(_mm512_unpacklo_epi16(a, b)), half_of(_mm512_unpackhi_epi16(a, b))};
}

// Sums of outputs in order, from those of the two vectors, and back.
inline Simd::F first_outputs(Simd::F low, Simd::F high) {
  return _mm512_permutex2var_ps(low, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), high);
}
inline Simd::F last_outputs(Simd::F low, Simd::F high) {
  return _mm512_permutex2var_ps(low, _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31), high);
}

// c[0, n) = (add ? c : 0) + sums, n <= 32.
inline void store_outputs(float* c, Simd::F low, Simd::F high, size_t n, bool add) {
  Simd::F x = first_outputs(low, high), y = last_outputs(low, high);
  const size_t left = n > 16 ? n - 16 : 0;
  if (n >= 16) {
    Simd::store(c, add ? Simd::add(Simd::load(c), x) : x);
  } else {
    Simd::store_head(c, add ? Simd::add(Simd::load_head(c, n), x) : x, n);
  }
  if (left == 16) Simd::store(c + 16, add ? Simd::add(Simd::load(c + 16), y) : y);
  else if (left) Simd::store_head(c + 16, add ? Simd::add(Simd::load_head(c + 16, left), y) : y, left);
}

// ---- Few tokens: whole weight rows in the order in which they lie, eight at a time; the sums of all n outputs stay in L1.

constexpr size_t kHalfStreamRows = 8;
constexpr size_t kHalfStreamTokens = 4;

// Eight rows and n outputs, a multiple of 32, for `Tokens` tokens. Until the last rows of the sweep along k the sums stay as the
// two vectors are.
template <DataType T, int Tokens, bool First, bool Last>
__attribute__((noinline)) void stream_whole(const uint8_t* w, size_t row_bytes, const uint16_t* a, size_t lda, float* c,
                                            size_t ldc, size_t n, FetchAhead& next_rows) {
  constexpr size_t kPairs = kHalfStreamRows / 2;
  FetchAhead next = next_rows;  // in registers
  Half x[kPairs][Tokens];
  for (size_t pair = 0; pair < kPairs; ++pair)
    for (int t = 0; t < Tokens; ++t) x[pair][t] = broadcast_pair(a + t * lda + 2 * pair);
  for (size_t j = 0; j < n; j += 32, w += 32 * size_of(T), c += 32) {
    Simd::F acc[Tokens][2];
    for (int t = 0; t < Tokens; ++t)
      for (int v = 0; v < 2; ++v) acc[t][v] = First ? Simd::zero() : Simd::load(c + t * ldc + 16 * v);
    for (size_t pair = 0; pair < kPairs; ++pair) {
      for (size_t line = 0; line < 2 * 32 * size_of(T); line += 64) next.line();
      const PairOfRows rows = interleave<T>(w + 2 * pair * row_bytes, row_bytes, true, 32);
      for (int t = 0; t < Tokens; ++t) {
        acc[t][0] = multiply_pairs(x[pair][t], rows.low, acc[t][0]);
        acc[t][1] = multiply_pairs(x[pair][t], rows.high, acc[t][1]);
      }
    }
    for (int t = 0; t < Tokens; ++t) {
      const Simd::F low = acc[t][0], high = acc[t][1];
      Simd::store(c + t * ldc, Last ? first_outputs(low, high) : low);
      Simd::store(c + t * ldc + 16, Last ? last_outputs(low, high) : high);
    }
  }
  next_rows = next;
}

// Fewer rows or outputs; the sums are in order at all times.
template <DataType T>
void stream_edge(const uint8_t* w, size_t row_bytes, size_t rows, const uint16_t* a, size_t lda, float* c, size_t ldc,
                 size_t tokens, size_t n, bool first) {
  for (size_t j = 0; j < n; j += 32) {
    const size_t count = n - j < 32 ? n - j : 32;
    for (size_t t = 0; t < tokens; ++t) {
      Simd::F low = Simd::zero(), high = Simd::zero();
      for (size_t r = 0; r < rows; r += 2) {
        const PairOfRows pair = interleave<T>(w + r * row_bytes + j * size_of(T), row_bytes, r + 1 < rows, count);
        const Half x = broadcast_pair(a + t * lda + r);
        low = multiply_pairs(x, pair.low, low);
        high = multiply_pairs(x, pair.high, high);
      }
      store_outputs(c + t * ldc + j, low, high, count, !first);
    }
  }
}

template <DataType T, int Tokens>
inline void stream_half_rows(const MatmulArgs& p, const uint8_t* w, const uint16_t* a, float* c, size_t n, bool first,
                             bool last, FetchAhead& next) {
  const size_t row_bytes = p.ldw * size_of(T);
  const auto run = first ? last ? stream_whole<T, Tokens, true, true> : stream_whole<T, Tokens, true, false>
                         : last ? stream_whole<T, Tokens, false, true> : stream_whole<T, Tokens, false, false>;
  run(w, row_bytes, a, p.lda, c, p.ldc, n, next);
}

template <DataType T>
void matmul_half_stream(const MatmulArgs& p) {
  const size_t row_bytes = p.ldw * size_of(T), whole_k = p.k / kHalfStreamRows * kHalfStreamRows, whole_n = p.n / 32 * 32;
  const uint16_t* a = static_cast<const uint16_t*>(p.a);
  rows_ahead<T>(p, 0, kHalfStreamRows).all();
  for (size_t k = 0; k < whole_k; k += kHalfStreamRows) {
    const uint8_t* w = static_cast<const uint8_t*>(p.w) + k * row_bytes;
    FetchAhead next = rows_ahead<T>(p, k + kHalfStreamRows, kHalfStreamRows);
    const bool first = k == 0, last = k + kHalfStreamRows == whole_k;
    for (size_t t = 0; t < p.m; t += kHalfStreamTokens) {
      const uint16_t* tokens = a + t * p.lda + k;
      float* c = p.c + t * p.ldc;
      switch (p.m - t) {
        case 1: stream_half_rows<T, 1>(p, w, tokens, c, whole_n, first, last, next); break;
        case 2: stream_half_rows<T, 2>(p, w, tokens, c, whole_n, first, last, next); break;
        case 3: stream_half_rows<T, 3>(p, w, tokens, c, whole_n, first, last, next); break;
        default: stream_half_rows<T, 4>(p, w, tokens, c, whole_n, first, last, next);
      }
    }
    if (whole_n < p.n)
      stream_edge<T>(w + whole_n * size_of(T), row_bytes, kHalfStreamRows, a + k, p.lda, p.c + whole_n, p.ldc, p.m,
                     p.n - whole_n, first);
  }
  if (whole_k < p.k)
    stream_edge<T>(static_cast<const uint8_t*>(p.w) + whole_k * row_bytes, row_bytes, p.k - whole_k, a + whole_k, p.lda, p.c,
                   p.ldc, p.m, p.n, whole_k == 0);
}

// ---- More tokens: strips of kHalfPanelK inputs × 32 outputs, interleaved by the first tile that uses them into scratch that
// stays in L1 or L2, for all other tokens.

// A strip of 16 KB and the pairs of 8 tokens, 8 KB, share L1.
constexpr size_t kHalfPanelK = 256;
constexpr size_t kHalfPanelN = 32;
// Outputs of a panel. Narrow ones, 128 KB that is multiplied and 128 KB that is fetched meanwhile, leave L2 to the tokens.
constexpr size_t kHalfPanelOutputs = 256;
// Rows of the first panel that are fetched before anything is multiplied: enough to keep the memory busy at once.
constexpr size_t kHalfFirstRows = 16;
// 8 × 2 sums are twice what hides an addition's latency; up to 12 tokens need no second tile.
constexpr size_t kHalfTokens = 8, kHalfMostTokens = 12;

inline void store_pairs(const PairOfRows& x, uint16_t* to) {
  _mm512_store_si512(to, bits_of(x.low));
  _mm512_store_si512(to + kHalfPanelN, bits_of(x.high));
}

struct PackedPairs {
  const uint16_t* packed;
  PairOfRows pairs(size_t pair) const {
    const uint16_t* p = packed + pair * 2 * kHalfPanelN;
    return {half_of(_mm512_load_si512(p)), half_of(_mm512_load_si512(p + kHalfPanelN))};
  }
};

// A whole strip of the matrix, packed (if it is to be kept) while the first tile uses it: the copy costs stores only, which
// the arithmetic hides.
template <DataType T, bool Keep>
struct StreamedPairs {
  const uint8_t* w;
  size_t row_bytes;
  uint16_t* packed;
  PairOfRows pairs(size_t pair) const {
    const PairOfRows x = interleave<T>(w + 2 * pair * row_bytes, row_bytes, true, kHalfPanelN);
    if constexpr (Keep) store_pairs(x, packed + pair * 2 * kHalfPanelN);
    return x;
  }
};

// A strip at the edge of the matrix: fewer outputs, or an odd number of inputs.
template <DataType T>
void fill_pairs(const uint8_t* w, size_t row_bytes, size_t inputs, size_t n, uint16_t* packed) {
  for (size_t k = 0; k < inputs; k += 2)
    store_pairs(interleave<T>(w + k * row_bytes, row_bytes, k + 1 < inputs, n), packed + k * kHalfPanelN);
}

// Pairs of a tile's tokens: of the first eight from `a` on, of the others from `rest` on, which may be in the next block.
struct TileTokens {
  const uint16_t* a;
  const uint16_t* rest;
};

template <int Tokens, class Strip>
inline void half_step(const TileTokens& tokens, const Strip& strip, size_t pair, Simd::F (&acc)[Tokens][2]) {
  constexpr int kFirst = kHalfTokens;
  const PairOfRows w = strip.pairs(pair);
  for (int t = 0; t < Tokens; ++t) {
    const Half x = broadcast_pair((t < kFirst ? tokens.a + 2 * t : tokens.rest + 2 * (t - kFirst)) + pair * 32);
    acc[t][0] = multiply_pairs(x, w.low, acc[t][0]);
    acc[t][1] = multiply_pairs(x, w.high, acc[t][1]);
  }
}

// `Tokens` tokens and one strip of `pairs` input pairs.
template <int Tokens, class Strip>
__attribute__((noinline)) void half_tile(const TileTokens& a, const Strip& strip, size_t pairs, float* c, size_t ldc,
                                         size_t n, bool add, PanelFetch& next_panel) {
  constexpr size_t kStep = PanelFetch::kSparse;
  Simd::F acc[Tokens][2];
  for (int t = 0; t < Tokens; ++t) acc[t][0] = acc[t][1] = Simd::zero();
  PanelFetch next = next_panel;  // in registers
  size_t p = 0;
  if (next.sparse())
    for (; p + kStep <= pairs; p += kStep) {
      next.fetch.line();
      for (size_t i = 0; i < kStep; ++i) half_step<Tokens, Strip>(a, strip, p + i, acc);
    }
  for (; p < pairs; ++p) {
    next.step();
    half_step<Tokens, Strip>(a, strip, p, acc);
  }
  next_panel = next;
  for (int t = 0; t < Tokens; ++t) store_outputs(c + t * ldc, acc[t][0], acc[t][1], n, add);
}

template <size_t Most, class Strip>
inline void half_tokens(size_t tokens, const TileTokens& a, const Strip& strip, size_t pairs, float* c, size_t ldc, size_t n,
                        bool add, PanelFetch& next) {
  if constexpr (Most > 0) {
    if (tokens == Most) half_tile<Most, Strip>(a, strip, pairs, c, ldc, n, add, next);
    else half_tokens<Most - 1, Strip>(tokens, a, strip, pairs, c, ldc, n, add, next);
  }
}

// How many tokens the tile takes that begins at token t, a multiple of eight: a few that are left over join the last tile.
inline size_t tile_tokens(size_t m, size_t t) { return m - t <= kHalfMostTokens ? m - t : kHalfTokens; }

// Tokens from t on, of inputs that begin at `a` in the first block.
inline TileTokens tile_at(const MatmulArgs& p, const uint16_t* a, size_t t) {
  const auto place = [&](size_t token) { return a + token / kBlockTokens * kBlockTokens * p.lda + token % kBlockTokens * 2; };
  return {place(t), place(t + kHalfTokens)};
}

// A panel's place in the matrix.
struct PanelPlace {
  size_t k, j;
};

// The panel after this one: down the inputs first, then across the outputs; k = p.k after the last.
inline PanelPlace panel_after(const MatmulArgs& p, PanelPlace at) {
  at.k += kHalfPanelK;
  if (at.k >= p.k && at.j + kHalfPanelOutputs < p.n) at = {0, at.j + kHalfPanelOutputs};
  return at;
}

inline size_t at_most(size_t left, size_t most) { return left < most ? left : most; }

// Its weights; after the last panel the first one of the matrix that comes next.
template <DataType T>
inline FetchAhead fetch_panel(const MatmulArgs& p, const PanelPlace& at, size_t rows) {
  const size_t row_bytes = p.ldw * size_of(T);
  if (at.k >= p.k)
    return {p.next_w, at_most(p.k, rows), at_most(p.n, kHalfPanelOutputs) * size_of(T), row_bytes};
  const uint8_t* first = static_cast<const uint8_t*>(p.w) + at.k * row_bytes + at.j * size_of(T);
  return {first, at_most(p.k - at.k, rows), at_most(p.n - at.j, kHalfPanelOutputs) * size_of(T), row_bytes};
}

// All tokens times one strip: outputs from j on, inputs from k on.
template <DataType T>
inline void half_strip(const MatmulArgs& p, size_t k, size_t j, PanelFetch& next) {
  const size_t row_bytes = p.ldw * size_of(T), head = tile_tokens(p.m, 0);
  const size_t inputs = at_most(p.k - k, kHalfPanelK), pairs = (inputs + 1) / 2, n = at_most(p.n - j, kHalfPanelN);
  const uint8_t* corner = static_cast<const uint8_t*>(p.w) + k * row_bytes + j * size_of(T);
  const uint16_t* a = static_cast<const uint16_t*>(p.a) + k * kBlockTokens;
  uint16_t* packed = static_cast<uint16_t*>(p.scratch);
  const bool add = k > 0;
  const auto first_tile = [&](const auto& strip) {
    half_tokens<kHalfMostTokens>(head, tile_at(p, a, 0), strip, pairs, p.c + j, p.ldc, n, add, next);
  };
  if (n < kHalfPanelN || inputs % 2) {
    fill_pairs<T>(corner, row_bytes, inputs, n, packed);
    first_tile(PackedPairs{packed});
  } else if (p.m == head) {
    first_tile(StreamedPairs<T, false>{corner, row_bytes, packed});
  } else {
    first_tile(StreamedPairs<T, true>{corner, row_bytes, packed});
  }
  for (size_t t = head, count; t < p.m; t += count) {
    count = tile_tokens(p.m, t);
    half_tokens<kHalfMostTokens>(count, tile_at(p, a, t), PackedPairs{packed}, pairs, p.c + t * p.ldc + j, p.ldc, n, add, next);
  }
}

template <DataType T>
void matmul_half_panel(const MatmulArgs& p) {
  size_t tiles = 0;
  for (size_t t = 0; t < p.m; t += tile_tokens(p.m, t)) ++tiles;
  PanelPlace at = {0, 0};
  fetch_panel<T>(p, at, kHalfFirstRows).all();
  while (at.k < p.k) {
    const PanelPlace after = panel_after(p, at);
    const size_t outputs = at_most(p.n - at.j, kHalfPanelOutputs);
    const size_t strips = (outputs + kHalfPanelN - 1) / kHalfPanelN, inputs = at_most(p.k - at.k, kHalfPanelK);
    PanelFetch next(fetch_panel<T>(p, after, kHalfPanelK), tiles * strips * ((inputs + 1) / 2));
    for (size_t j = at.j; j < at.j + outputs; j += kHalfPanelN) half_strip<T>(p, at.k, j, next);
    at = after;
  }
}
