// Scores of up to 8 rows as dot products, 16 at once, whose sums across lanes share their additions: in lanes, each product
// of half a vector of rows would wait for a broadcast of its own. Included inside an ISA namespace with 512-bit vectors, after
// attention_lanes.inl.

constexpr int kDotSums = 16;

// The sum of row r and key k is lane k·Rows + r. Beyond the last key they are stored too, where nothing is looked at.
template <int Rows>
inline void store_dots(Simd::F sums, size_t lanes, float* scores) {
  if constexpr (Rows == 8) return Simd::store(scores, sums);
  if constexpr (Rows == 4) {
    _mm_storeu_ps(scores, _mm512_castps512_ps128(sums));
    _mm_storeu_ps(scores + lanes, _mm512_extractf32x4_ps(sums, 1));
    _mm_storeu_ps(scores + 2 * lanes, _mm512_extractf32x4_ps(sums, 2));
    _mm_storeu_ps(scores + 3 * lanes, _mm512_extractf32x4_ps(sums, 3));
    return;
  }
  float each[Simd::kWidth];
  Simd::store(each, sums);
  for (int i = 0; i < kDotSums; ++i) scores[i / Rows * lanes + i % Rows] = each[i];
}

// `Rows` rows and `Keys` keys; where few keys are left there are fewer than kDotSums products. `Whole`: elements of a key fill
// its vectors.
template <class Dots, DataType T, int Rows, int Keys, bool Whole>
__attribute__((noinline)) void dots_tile(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, float* scores,
                                         Lines lines) {
  Simd::F acc[Rows][Keys];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 16
    for (int k = 0; k < Keys; ++k) acc[r][k] = Simd::zero();
  const size_t row_bytes = p.key_size * size_of(T);
  const auto multiply = [&](size_t d, size_t n) {
    typename Dots::Vector key[Keys];
#pragma GCC unroll 16
    for (int k = 0; k < Keys; ++k) key[k] = Dots::template load<T>(keys + k * row_bytes + d * size_of(T), n);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      typename Dots::Vector query = Dots::query(s, r, d);
      asm("" : "+v"(query));  // or each of its products would load it again
#pragma GCC unroll 16
      for (int k = 0; k < Keys; ++k) acc[r][k] = Dots::multiply(query, key[k], acc[r][k]);
    }
  };
  size_t d = 0;
  for (; d + Dots::kWidth <= p.key_size; d += Dots::kWidth) {
    lines.fetch<lines_of(Keys, Dots::kWidth * size_of(T))>();
    multiply(d, Dots::kWidth);
  }
  if constexpr (!Whole) multiply(d, p.key_size - d);
  const auto product = [&](int i) { return i / Rows < Keys ? acc[i % Rows][i / Rows] : Simd::zero(); };
  store_dots<Rows>(Simd::sums(product), s.lanes, scores);
}

template <class Dots, DataType T, int Rows, bool Whole>
inline void dots_of_rows(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count, Ahead ahead) {
  constexpr int kKeys = kDotSums / Rows;
  const size_t row_bytes = p.key_size * size_of(T);
  const size_t lines = lines_of(kKeys, Dots::kWidth * size_of(T)) * (p.key_size / Dots::kWidth);
  size_t k = 0;
  for (; k + kKeys <= count; k += kKeys)
    dots_tile<Dots, T, Rows, kKeys, Whole>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead.take(lines));
  for (; k < count; ++k) dots_tile<Dots, T, Rows, 1, Whole>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead.nothing());
}

template <class Dots, DataType T, bool Whole>
inline void dots_of_block(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count,
                          const Ahead& ahead) {
  if (p.rows == 1) return dots_of_rows<Dots, T, 1, Whole>(p, s, keys, count, ahead);
  if (p.rows == 2) return dots_of_rows<Dots, T, 2, Whole>(p, s, keys, count, ahead);
  if (p.rows <= 4) return dots_of_rows<Dots, T, 4, Whole>(p, s, keys, count, ahead);
  return dots_of_rows<Dots, T, 8, Whole>(p, s, keys, count, ahead);
}

template <class Dots, DataType T>
inline void score_dots(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count,
                       const Ahead& ahead) {
  return p.key_size % Dots::kWidth ? dots_of_block<Dots, T, false>(p, s, keys, count, ahead)
                                   : dots_of_block<Dots, T, true>(p, s, keys, count, ahead);
}

struct FloatDots {
  using Vector = Simd::F;
  static constexpr size_t kWidth = Simd::kWidth;
  template <DataType T>
  static Vector load(const uint8_t* at, size_t n) {
    return n == kWidth ? Weights<T>::load(at) : Weights<T>::load_head(at, n);
  }
  static Vector query(const AttendScratch& s, int row, size_t d) { return Simd::load(s.queries + row * s.key_ld + d); }
  static Vector multiply(Vector x, Vector y, Simd::F acc) { return Simd::fma(x, y, acc); }
};

struct FewRows {
  static constexpr size_t kMost = 8;

  static void begin(const AttendArgs& p, const AttendScratch& s) {
    const size_t known = p.rows * s.key_ld;
    for (size_t i = 0; i < known; i += Simd::kWidth) Simd::store(s.queries + i, Simd::load(p.queries + i));
    for (size_t i = known; i < kMost * s.key_ld; i += Simd::kWidth) Simd::store(s.queries + i, Simd::zero());
  }
  template <DataType T>
  static void scores(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count,
                     const Ahead& ahead) {
    score_dots<FloatDots, T>(p, s, keys, count, ahead);
  }
};
