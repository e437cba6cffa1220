// Scores on AMX: 16 keys are operand A where they lie in the cache, 16 rows of queries in lanes are B. Included inside an ISA
// namespace, after attention_bf16.inl and amx_kn_stream.inl.

// Scratch begins with the sums of a piece; then come copied keys or interleaved values.
constexpr size_t kSumFloats = kMostLine * kTileFloats;

inline size_t tiles_of(size_t count) { return (count + kTileRows - 1) / kTileRows; }

// All of `ahead`, spread over the steps of a grid of tiles.
inline Prefetch spread(const Ahead& ahead, size_t columns, size_t rows, size_t steps) {
  const size_t pieces = rows == 1 ? columns / kMostShortLine : columns / 2 * (rows / 2);
  const size_t lines = (ahead.left + 63) / 64, all_steps = steps * (pieces ? pieces : 1);
  Prefetch fetch;
  fetch.row = ahead.at;
  fetch.run = ahead.left;
  fetch.rows = ahead.left ? 1 : 0;
  fetch.lines_per_step = (lines + all_steps - 1) / all_steps;
  return fetch;
}

// What Cover calls weights are 16 keys, what it calls tokens 16 rows.
struct ScoreForm {
  static constexpr bool kWeightsAreA = true;
  // With few rows a key is read once, but what such a load takes, four times a near one's, no product would hide.
  static constexpr bool kStreamA = false;
  static constexpr size_t kWeightStep = kTileRowBytes;
  static constexpr size_t kTokenStep = kTileBytes;
  static constexpr bool resume = false;

  const AttendArgs& p;
  const AttendScratch& s;
  const uint8_t* const keys;
  const size_t count;
  const size_t steps;
  const size_t sum_stride;
  Prefetch ahead;

  ScoreForm(const AttendArgs& args, const AttendScratch& scratch, const uint8_t* keys, size_t count, const Ahead& next)
      : p(args),
        s(scratch),
        keys(keys),
        count(count),
        steps(padded_inputs(args.key_size) / kBlockInputs),
        sum_stride(half_tiles() ? kTileRowBytes : scratch.lanes * sizeof(float)),
        ahead(spread(next, tiles_of(count), tiles_of(args.rows), steps)) {}

  // Lanes of half a vector are narrower than a tile.
  bool half_tiles() const { return s.lanes < kTileRows; }
  // Where a tile would reach beyond the keys of the block, or its last step beyond the end of each.
  bool copied(size_t i) const { return p.key_size % kBlockInputs || count < (i + 1) * kTileRows; }
  uint8_t* copy(size_t i) const { return reinterpret_cast<uint8_t*>(s.tiles + kSumFloats) + i * kTileRows * copied_row(); }
  size_t copied_row() const { return s.key_ld * sizeof(uint16_t); }
  size_t key_row() const { return p.key_size * sizeof(uint16_t); }

  void copy_keys() const {
    for (size_t first = 0, i = 0; first < count; first += kTileRows, ++i)
      if (copied(i))
        copy_rows<DataType::kBF16>(keys + first * key_row(), key_row(), count - first, p.key_size, copy(i), copied_row());
  }
  void run() {
    copy_keys();
    Cover<ScoreForm>(*this).run(tiles_of(count), tiles_of(p.rows));
  }

  Operand weights(size_t i) const {
    return copied(i) ? Operand{copy(i), copied_row()} : Operand{keys + i * kTileRows * key_row(), key_row()};
  }
  Operand tokens(size_t j) const {
    return {reinterpret_cast<const uint8_t*>(s.queries) + j * steps * kTileBytes, kTileRowBytes};
  }
  float* scores(size_t i, size_t j) const { return s.scores + i * kTileRows * s.lanes + j * kTileRows; }
  float* sum(size_t i, size_t j, size_t slot) const { return half_tiles() ? s.tiles + slot * kTileFloats : scores(i, j); }
  void finish(size_t i, size_t j, const float* sum) const {
    if (!half_tiles()) return;
    float* const to = scores(i, j);
    for (size_t k = 0; k < kTileRows; k += 2) {
      const __m512 x = _mm512_load_ps(sum + k * kTileRows), y = _mm512_load_ps(sum + (k + 1) * kTileRows);
      _mm512_store_ps(to + k * kTileRows / 2, _mm512_shuffle_f32x4(x, y, 0x44));
    }
  }
};
