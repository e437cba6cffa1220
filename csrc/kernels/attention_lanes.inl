// Query rows in lanes: element d of row r at packed[d·lanes + r], rows that there are not as zeros. An element of a key, the
// same for all rows, then meets a whole vector of them, no sum crosses lanes, and the maximum over keys is one of vectors.
// Included inside an ISA namespace, after vector_ops.inl.

inline size_t rounded_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

inline size_t lanes_of(size_t rows) {
  return rows <= kLeastLanes ? kLeastLanes : rounded_up(rows, Simd::kWidth);
}

constexpr size_t kScoreStep = 16;
constexpr int kScoreRest = 4;  // keys of a tile where fewer than kScoreKeys are left

// Scratch of a call, each part beginning on a cache line, and what it says of the rows, in lanes.
struct AttendScratch {
  explicit AttendScratch(const AttendArgs& p) : lanes(lanes_of(p.rows)), key_ld(padded_head(p.key_size)) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(p.scratch);
    float* at = reinterpret_cast<float*>(rounded_up(address, 64));
    const auto take = [&](size_t floats) {
      float* const part = at;
      at += rounded_up(floats, 16);
      return part;
    };
    const size_t room = padded_rows(p.rows);
    queries = take(room * key_ld);
    scores = take(room * kAttentionKeys);
    weights = take(room * kAttentionKeys);
    keys = take(kScoreKeys * key_ld);
    most = take(room);
    sum = take(room);
    rescale = take(room);
    begin = take(room);
    end = take(room);
    bias = take(kAttentionKeys);
    seen = reinterpret_cast<KeyRange*>(take(room * sizeof(KeyRange) / sizeof(float)));
    tiles = take(attend_tiles(p.key_size));
  }

  size_t lanes, key_ld;
  float* queries;  // in lanes, or in rows (FewRows)
  float* scores;   // [key of the block, lanes]; they become the weights
  float* weights;  // of bf16 arithmetic: pairs of keys
  float* keys;     // a few, widened
  float* most;
  float* sum;
  float* rescale;  // of what was summed before this block
  float* begin;    // of the keys that a row sees, counted from the block's first
  float* end;
  float* bias;
  KeyRange* seen;
  float* tiles;  // attend_tiles()
};

// What is wanted next, fetched to L2 in the order in which it lies, a tile's share with each tile.
struct Lines {
  const uint8_t* at;
  size_t step;  // from one line to the next; 0: nothing is left to fetch

  template <size_t Count>
  void fetch() {
    for (size_t i = 0; i < Count; ++i) Simd::prefetch_l2(at), at += step;
  }
};

struct Ahead {
  const uint8_t* at;
  size_t left;  // bytes

  Lines take(size_t lines) {
    const Lines taken = {at, left ? kLine : 0};
    const size_t bytes = lines * kLine;
    at += left ? bytes : 0;
    left -= left < bytes ? left : bytes;
    return taken;
  }
  Lines nothing() const { return {at, 0}; }

 private:
  static constexpr size_t kLine = 64;
};

// Lines for `keys` keys with each step of `bytes` bytes of one of them.
constexpr size_t lines_of(size_t keys, size_t bytes) { return (keys * bytes + 63) / 64; }

inline void pack_lanes(const AttendArgs& p, const AttendScratch& s) {
  constexpr size_t kW = Simd::kWidth;
  for (size_t r = 0; r < s.lanes; r += kW)
    for (size_t d = 0; d < p.key_size; d += kW) {
      Simd::F square[kW];
      for (size_t i = 0; i < kW; ++i)
        square[i] = r + i < p.rows ? Simd::load(p.queries + (r + i) * s.key_ld + d) : Simd::zero();
      Simd::transpose(square);
      for (size_t i = 0; i < kW && d + i < p.key_size; ++i) Simd::store(s.queries + (d + i) * s.lanes + r, square[i]);
    }
}

// scores[k·lanes + r] = query r · key k, for vectors of rows and a few keys. With each step of 16 elements kLines are fetched.
template <int Vectors, int Keys, size_t kLines>
__attribute__((noinline)) void score_tile(const float* queries, size_t lanes, const float* keys, size_t ld, size_t size,
                                          float* scores, Lines ahead) {
  Simd::F acc[Vectors][Keys];
  for (int v = 0; v < Vectors; ++v)
    for (int k = 0; k < Keys; ++k) acc[v][k] = Simd::zero();
  const auto multiply = [&](size_t d) {
    Simd::F x[Vectors];
    for (int v = 0; v < Vectors; ++v) x[v] = Simd::load(queries + d * lanes + v * Simd::kWidth);
    for (int k = 0; k < Keys; ++k) {
      const Simd::F key = Simd::set1(keys[k * ld + d]);
      for (int v = 0; v < Vectors; ++v) acc[v][k] = Simd::fma(x[v], key, acc[v][k]);
    }
  };
  size_t d = 0;
  for (; d + kScoreStep <= size; d += kScoreStep) {
    ahead.fetch<kLines>();
    for (size_t i = 0; i < kScoreStep; ++i) multiply(d + i);
  }
  for (; d < size; ++d) multiply(d);
  for (int k = 0; k < Keys; ++k)
    for (int v = 0; v < Vectors; ++v) Simd::store(scores + k * lanes + v * Simd::kWidth, acc[v][k]);
}

// Widens keys that are not f32.
template <DataType T>
inline const float* wide_keys(const uint8_t* keys, size_t count, size_t size, const AttendScratch& s, size_t* ld) {
  if constexpr (T == DataType::kF32) {
    *ld = size;
    return reinterpret_cast<const float*>(keys);
  } else {
    *ld = s.key_ld;
    for (size_t k = 0; k < count; ++k) widen_all<T>(keys + k * size * size_of(T), size, 1.0f, s.keys + k * s.key_ld);
    return s.keys;
  }
}

// The scores of a few keys for all rows; the first tile fetches.
template <DataType T, int Keys>
inline void score_keys(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, float* scores, Ahead& ahead) {
  constexpr size_t kLines = lines_of(Keys, kScoreStep * size_of(T));
  size_t ld, r = 0;
  const float* const wide = wide_keys<T>(keys, Keys, p.key_size, s, &ld);
  Lines lines = ahead.take(kLines * (p.key_size / kScoreStep));
  for (; r + kScoreVectors * Simd::kWidth <= s.lanes; r += kScoreVectors * Simd::kWidth, lines = ahead.nothing())
    score_tile<kScoreVectors, Keys, kLines>(s.queries + r, s.lanes, wide, ld, p.key_size, scores + r, lines);
  for (; r < s.lanes; r += Simd::kWidth, lines = ahead.nothing())
    score_tile<1, Keys, kLines>(s.queries + r, s.lanes, wide, ld, p.key_size, scores + r, lines);
}

// The scores of a block of keys, and meanwhile `ahead`.
template <DataType T>
inline void score_lanes(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count, Ahead ahead) {
  const size_t row_bytes = p.key_size * size_of(T);
  size_t k = 0;
  for (; k + kScoreKeys <= count; k += kScoreKeys)
    score_keys<T, kScoreKeys>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
  for (; k + kScoreRest <= count; k += kScoreRest)
    score_keys<T, kScoreRest>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
  for (; k < count; ++k) score_keys<T, 1>(p, s, keys + k * row_bytes, s.scores + k * s.lanes, ahead);
}
