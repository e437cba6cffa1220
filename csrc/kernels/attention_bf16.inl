// Attention over bf16 caches with bf16 products: queries and weights are rounded to bf16, sums are f32. Queries lie in lanes as
// pairs of elements, weights as pairs of keys. Included inside an ISA namespace with AVX512-BF16, after attention.inl and
// bf16_weights.inl.

// Two vectors, rounded and interleaved: lane i holds the pair (x[i], y[i]).
inline Simd::F paired(Simd::F x, Simd::F y) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(y));
  return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

// Rows 2i and 2i + 1 of [count, lanes] become row i of pairs; a row that is missing at the end is 0. May be done in place.
inline void pair_rows(const float* from, size_t count, size_t lanes, float* to) {
  for (size_t i = 0; i < count; i += 2)
    for (size_t r = 0; r < lanes; r += Simd::kWidth) {
      const size_t n = lanes - r < Simd::kWidth ? lanes - r : Simd::kWidth;
      const Simd::F x = load_head_or_all(from + i * lanes + r, n);
      const Simd::F y = i + 1 < count ? load_head_or_all(from + (i + 1) * lanes + r, n) : Simd::zero();
      store_head_or_all(to + i / 2 * lanes + r, paired(x, y), n);
    }
}

template <int Vectors, int Keys, size_t kLines>
__attribute__((noinline)) void half_score_tile(const float* queries, size_t lanes, const uint8_t* keys, size_t row_bytes,
                                               float* scores, Lines ahead) {
  Simd::F acc[Vectors][Keys];
  for (int v = 0; v < Vectors; ++v)
    for (int k = 0; k < Keys; ++k) acc[v][k] = Simd::zero();
  const auto multiply = [&](size_t pair) {
    Half x[Vectors];
    for (int v = 0; v < Vectors; ++v) x[v] = half_of(_mm512_loadu_si512(queries + pair * lanes + v * Simd::kWidth));
    for (int k = 0; k < Keys; ++k) {
      const Half key = broadcast_pair(reinterpret_cast<const uint16_t*>(keys + k * row_bytes + pair * 4));
      for (int v = 0; v < Vectors; ++v) acc[v][k] = multiply_pairs(x[v], key, acc[v][k]);
    }
  };
  const size_t pairs = row_bytes / 4;
  size_t pair = 0;
  for (; pair + kScoreStep <= pairs; pair += kScoreStep) {
    ahead.fetch<kLines>();
    for (size_t i = 0; i < kScoreStep; ++i) multiply(pair + i);
  }
  for (; pair < pairs; ++pair) multiply(pair);
  for (int k = 0; k < Keys; ++k)
    for (int v = 0; v < Vectors; ++v) Simd::store(scores + k * lanes + v * Simd::kWidth, acc[v][k]);
}

template <int Keys>
inline void half_score_keys(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, float* scores, Ahead& ahead) {
  constexpr size_t kLines = lines_of(Keys, kScoreStep * 4);
  const size_t row_bytes = p.key_size * 2;
  Lines lines = ahead.take(kLines * (row_bytes / 4 / kScoreStep));
  size_t r = 0;
  for (; r + kScoreVectors * Simd::kWidth <= s.lanes; r += kScoreVectors * Simd::kWidth, lines = ahead.nothing())
    half_score_tile<kScoreVectors, Keys, kLines>(s.queries + r, s.lanes, keys, row_bytes, scores + r, lines);
  for (; r < s.lanes; r += Simd::kWidth, lines = ahead.nothing())
    half_score_tile<1, Keys, kLines>(s.queries + r, s.lanes, keys, row_bytes, scores + r, lines);
}

// 32 columns in two vectors as interleaving two rows of bf16 gives them: of each eight the first four are in one vector, the
// last four in the other. The values that are summed stay in this order during a call.
struct ColumnOrder {
  static void to_pairs(const AttendArgs& p) { for_each_group(p, to_pairs); }
  static void to_columns(const AttendArgs& p) { for_each_group(p, to_columns); }

 private:
  static void to_pairs(float* x) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    apply(x, low, _mm512_add_epi32(low, _mm512_set1_epi32(4)));
  }
  static void to_columns(float* x) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    apply(x, low, _mm512_add_epi32(low, _mm512_set1_epi32(8)));
  }
  static void apply(float* x, __m512i low, __m512i high) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    _mm512_storeu_ps(x, _mm512_permutex2var_ps(a, low, b));
    _mm512_storeu_ps(x + 16, _mm512_permutex2var_ps(a, high, b));
  }
  static void for_each_group(const AttendArgs& p, void (*change)(float*)) {
    for (size_t r = 0; r < p.rows; ++r)
      for (size_t column = 0; column < p.value_size; column += 32) change(p.state.values + r * p.state.ld + column);
  }
};

// `Whole`: there are 32 columns.
template <int Rows, bool Whole>
__attribute__((noinline)) void half_value_tile(const float* weights, size_t lanes, const uint8_t* values, size_t row_bytes,
                                               KeyRange keys, size_t columns, const float* rescale, float* sums,
                                               size_t ld, Lines lines) {
  Simd::F acc[Rows][2];
  for (int r = 0; r < Rows; ++r) {
    const Simd::F factor = Simd::set1(rescale ? rescale[r] : 1.0f);
    acc[r][0] = Simd::mul(Simd::load(sums + r * ld), factor);
    acc[r][1] = Simd::mul(Simd::load(sums + r * ld + 16), factor);
  }
  const __mmask32 some = (__mmask32)((uint64_t{1} << (Whole ? 32 : columns)) - 1);
  const auto columns_of = [&](size_t key) {
    const uint8_t* const at = values + key * row_bytes;
    return Whole ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi16(some, at);
  };
  const auto multiply = [&](size_t pair, __m512i a, __m512i b) {
    const Half x = half_of(_mm512_unpacklo_epi16(a, b)), y = half_of(_mm512_unpackhi_epi16(a, b));
    for (int r = 0; r < Rows; ++r) {
      const Half weight = broadcast_pair(reinterpret_cast<const uint16_t*>(weights + pair * lanes + r));
      acc[r][0] = multiply_pairs(x, weight, acc[r][0]);
      acc[r][1] = multiply_pairs(y, weight, acc[r][1]);
    }
  };
  size_t k = keys.begin;
  if (k % 2 && k < keys.end) multiply(k / 2, _mm512_setzero_si512(), columns_of(k)), ++k;
  for (; k + 2 <= keys.end; k += 2) {
    lines.fetch<2>();
    multiply(k / 2, columns_of(k), columns_of(k + 1));
  }
  if (k < keys.end) multiply(k / 2, columns_of(k), _mm512_setzero_si512());
  for (int r = 0; r < Rows; ++r) {
    Simd::store(sums + r * ld, acc[r][0]);
    Simd::store(sums + r * ld + 16, acc[r][1]);
  }
}

struct HalfValueTile {
  static constexpr int kRows = kValueRows;
  static constexpr size_t kColumns = 32;
  static size_t lines(size_t keys) { return keys; }

  template <int Rows>
  static void run(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange& keys, size_t row,
                  size_t column, bool rescale, const Lines& lines) {
    const size_t left = p.value_size - column;
    const auto tile = left >= kColumns ? half_value_tile<Rows, true> : half_value_tile<Rows, false>;
    tile(s.weights + row, s.lanes, values + column * 2, p.value_size * 2, keys, left, rescale ? s.rescale + row : nullptr,
         p.state.values + row * p.state.ld + column, p.state.ld, lines);
  }
};

struct HalfDots {
  using Vector = Half;
  static constexpr size_t kWidth = 32;
  template <DataType T>
  static Vector load(const uint8_t* at, size_t n) {
    return n == kWidth ? HalfWeights<T>::load(at) : HalfWeights<T>::load_head(at, n);
  }
  static const uint16_t* row(const AttendScratch& s, size_t r) {
    return reinterpret_cast<const uint16_t*>(s.queries) + r * s.key_ld;
  }
  static Vector query(const AttendScratch& s, size_t r, size_t d) {
    return half_of(_mm512_loadu_si512(row(s, r) + d));
  }
  static Simd::F multiply(Vector x, Vector y, Simd::F acc) { return multiply_pairs(x, y, acc); }

  static void round_queries(const AttendScratch& s, size_t rows) {
    uint16_t* const to = reinterpret_cast<uint16_t*>(s.queries);
    for (size_t i = 0; i < rows * s.key_ld; i += kWidth)
      _mm512_storeu_si512(to + i, bits_of(rounded(Simd::load(s.queries + i), Simd::load(s.queries + i + Simd::kWidth))));
  }
};

struct HalfAttention {
  static void begin(const AttendArgs& p, const AttendScratch& s) {
    if (p.rows > FewRows::kMost) {
      pack_lanes(p, s);
      pair_rows(s.queries, p.key_size, s.lanes, s.queries);
    } else {
      FewRows::begin(p, s);
      HalfDots::round_queries(s, FewRows::kMost);
    }
    ColumnOrder::to_pairs(p);
  }
  static void scores(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count, Ahead ahead) {
    if (p.rows <= FewRows::kMost) return score_dots<HalfDots, DataType::kBF16>(p, s, keys, count, ahead);
    const size_t row_bytes = p.key_size * 2;
    size_t k = 0;
    for (; k + kScoreKeys <= count; k += kScoreKeys)
      half_score_keys<kScoreKeys>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
    for (; k + kScoreRest <= count; k += kScoreRest)
      half_score_keys<kScoreRest>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
    for (; k < count; ++k)
      half_score_keys<1>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
  }
  static void values(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange* seen, size_t count,
                     const Ahead& ahead) {
    pair_rows(s.scores, count, s.lanes, s.weights);
    AddValues<HalfValueTile>{p, s, values, seen, count, ahead}.run();
  }
  static void end(const AttendArgs& p, const AttendScratch&) { ColumnOrder::to_columns(p); }
};

// Keys of an odd size do not consist of pairs; one or two rows gain nothing.
inline void attend_half(const AttendArgs& p) {
  const bool half = p.type == DataType::kBF16 && p.key_size % 2 == 0 && p.rows > 2;
  half ? attend_with<HalfAttention>(p) : attend_float(p);
}
