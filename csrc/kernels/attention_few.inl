// A few rows would leave most lanes empty: dot products of each key with all of them. Included inside an ISA namespace, after
// attention_lanes.inl.

template <DataType T, int Rows, int Keys>
inline void dot_tile(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, float* scores, Lines lines) {
  Simd::F sum[Rows][Keys];
  for (int r = 0; r < Rows; ++r)
    for (int k = 0; k < Keys; ++k) sum[r][k] = Simd::zero();
  for (size_t d = 0; d < p.key_size; d += Simd::kWidth) {
    lines.fetch<lines_of(Keys, Simd::kWidth * size_of(T))>();
    for (int k = 0; k < Keys; ++k) {
      const uint8_t* const at = keys + (k * p.key_size + d) * size_of(T);
      const size_t n = p.key_size - d;
      const Simd::F key = n < Simd::kWidth ? Weights<T>::load_head(at, n) : Weights<T>::load(at);
      for (int r = 0; r < Rows; ++r) sum[r][k] = Simd::fma(Simd::load(p.queries + r * s.key_ld + d), key, sum[r][k]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int k = 0; k < Keys; ++k) scores[k * s.lanes + r] = Simd::sum(sum[r][k]);
}

struct FewRows {
  static constexpr size_t kMost = 3;

  static void begin(const AttendArgs&, const AttendScratch&) {}

  template <DataType T>
  static void scores(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count,
                     const Ahead& ahead) {
    switch (p.rows) {
      case 1: return rows<T, 1>(p, s, keys, count, ahead);
      case 2: return rows<T, 2>(p, s, keys, count, ahead);
      default: return rows<T, 3>(p, s, keys, count, ahead);
    }
  }

 private:
  template <DataType T, int Rows>
  static void rows(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count, Ahead ahead) {
    constexpr int kKeys = 4;
    const size_t row_bytes = p.key_size * size_of(T);
    const size_t lines = lines_of(kKeys, Simd::kWidth * size_of(T)) * ((p.key_size + Simd::kWidth - 1) / Simd::kWidth);
    size_t k = 0;
    for (; k + kKeys <= count; k += kKeys)
      dot_tile<T, Rows, kKeys>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead.take(lines));
    for (; k < count; ++k) dot_tile<T, Rows, 1>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead.nothing());
  }
};
