// Attention over bf16 caches with tiles: rounding is that of attention_bf16.inl. Of scores, keys are operand A where they lie
// in the cache, and queries in lanes are B; of values, weights are operand A, and values, whose rows are interleaved in pairs
// into scratch once for all rows, are B. Included inside an ISA namespace, after attention_bf16.inl and amx_weights.inl.

// Fewer rows leave most of the tiles empty; for fewer keys tiles are not worth their configuration.
constexpr size_t kTileRowsLeast = 8, kTileKeysLeast = 16;
constexpr size_t kKeySteps = kAttentionKeys / kBlockInputs;  // of a block's values
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

// A bit for each key of a block.
struct KeySet {
  uint64_t words[kAttentionKeys / 64] = {};

  bool has(size_t k) const { return words[k / 64] >> k % 64 & 1; }
  void add(size_t k) { words[k / 64] |= uint64_t{1} << k % 64; }
};

// What Cover calls weights are 16 columns of values, what it calls tokens 16 rows.
struct ValueForm {
  static constexpr bool kWeightsAreA = false;
  static constexpr bool kStreamA = false;
  static constexpr size_t kWeightStep = kTileBytes;
  static constexpr size_t kTokenStep = kTileBytes;
  static constexpr size_t sum_stride = kTileRowBytes;
  static constexpr bool resume = false;
  // Of those that are interleaved at once, 32 KB of values: see attend_tiles().
  static constexpr size_t kColumns = 8;
  static constexpr size_t kColumnBytes = kKeySteps * kTileBytes + 64;

  const AttendArgs& p;
  const AttendScratch& s;
  const uint8_t* const values;
  const size_t count;
  const size_t steps;
  KeySet apart;  // keys that are left out
  Prefetch ahead;
  size_t first_column = 0;

  ValueForm(const AttendArgs& args, const AttendScratch& scratch, const uint8_t* values, size_t count, const Ahead& next)
      : p(args),
        s(scratch),
        values(values),
        count(count),
        steps(padded_inputs(count) / kBlockInputs),
        ahead(spread(next, columns(), tiles_of(args.rows), steps)) {}

  // Interleaving makes two of every 32 or less.
  size_t columns() const { return p.state.ld / kTileOutputs; }
  uint8_t* column(size_t i) const { return reinterpret_cast<uint8_t*>(s.tiles + kSumFloats) + i * kColumnBytes; }
  // Behind the room that pairs of weights would take.
  uint8_t* weight_tile(size_t row_tile, size_t step) const {
    uint8_t* const tiles = reinterpret_cast<uint8_t*>(s.weights + padded_rows(p.rows) * kAttentionKeys / 2);
    return tiles + (row_tile * kKeySteps + step) * kTileBytes;
  }

  void run() {
    for (size_t j = 0; j < tiles_of(p.rows); ++j)
      for (size_t step = 0; step < steps; ++step) pack_weights(j, step);
    for (first_column = 0; first_column < columns(); first_column += kColumns) {
      const size_t left = columns() - first_column, some = left < kColumns ? left : kColumns;
      interleave(some);
      Cover<ValueForm>(*this).run(some, tiles_of(p.rows));
    }
  }

  // Rounded, [row, key]; those of keys beyond the last are 0.
  ORT_HINA_NOINLINE void pack_weights(size_t row_tile, size_t step) const {
    const size_t lanes = s.lanes < kTileRows ? s.lanes : kTileRows;
    const auto weights_of = [&](size_t key) {
      return key < count ? load_head_or_all(s.scores + key * s.lanes + row_tile * kTileRows, lanes) : Simd::zero();
    };
    Simd::F square[kTileRows];
    for (size_t i = 0; i < kTileRows; ++i) {
      const size_t key = step * kBlockInputs + 2 * i;
      square[i] = paired(weights_of(key), weights_of(key + 1));
    }
    Simd::transpose(square);
    uint8_t* const to = weight_tile(row_tile, step);
    for (size_t i = 0; i < kTileRows; ++i) store_line(to + i * kTileRowBytes, _mm512_castps_si512(square[i]));
  }

  // The values of keys that are left out, or beyond the last, are 0.
  ORT_HINA_NOINLINE void interleave(size_t some) const {
    const size_t row_bytes = p.value_size * sizeof(uint16_t);
    for (size_t key = 0; key < steps * kBlockInputs; key += 2) {
      const __mmask32 first = kept(key) ? ~__mmask32{0} : 0, second = kept(key + 1) ? ~__mmask32{0} : 0;
      for (size_t i = 0; i < some; i += 2) {
        const size_t at = (first_column + i) * kTileOutputs;
        const uint8_t* const from = values + key * row_bytes + at * sizeof(uint16_t);
        const __mmask32 there = head32(p.value_size - at);
        const __m512i x = load_weights<DataType::kBF16>(from, first & there);
        const __m512i y = load_weights<DataType::kBF16>(from + row_bytes, second & there);
        store_line(column(i) + key / 2 * kTileRowBytes, _mm512_unpacklo_epi16(x, y));
        store_line(column(i + 1) + key / 2 * kTileRowBytes, _mm512_unpackhi_epi16(x, y));
      }
    }
  }
  bool kept(size_t key) const { return key < count && !apart.has(key); }

  Operand weights(size_t i) const { return {column(i), kTileRowBytes}; }
  Operand tokens(size_t j) const { return {weight_tile(j, 0), kTileRowBytes}; }
  float* sum(size_t, size_t, size_t slot) const { return s.tiles + slot * kTileFloats; }
  // Tiles begin at zero: to rescale what there is and then load it would be as many vector instructions, and loads of tiles
  // from what vectors have just written.
  void finish(size_t i, size_t j, const float* sum) const {
    const size_t row = j * kTileRows, rows = p.rows - row < kTileRows ? p.rows - row : kTileRows;
    float* to = p.state.values + row * p.state.ld + (first_column + i) * kTileOutputs;
    for (size_t r = 0; r < rows; ++r, to += p.state.ld)
      Simd::store(to, Simd::fma(Simd::load(to), Simd::set1(s.rescale[row + r]), Simd::load(sum + r * kTileOutputs)));
  }
};

inline bool all_finite(const uint8_t* values, size_t size) {
  const __m512i infinite = _mm512_set1_epi16(0x7f80);
  for (size_t i = 0; i < size; i += kBlockInputs) {
    const __m512i x = load_weights<DataType::kBF16>(values + i * sizeof(uint16_t), head32(size - i));
    if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(x, infinite), infinite)) return false;
  }
  return true;
}

// A tile gives every one of its rows every key, with the weight 0 where the row does not see it: right for values that are
// finite. Keys with others are added row by row, to those that see them.
struct TileAttention {
  static void begin(const AttendArgs& p, const AttendScratch& s) {
    configure_tiles();
    pack_queries(p, s);
    ColumnOrder::to_pairs(p);
  }
  static void scores(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count, const Ahead& ahead) {
    ScoreForm(p, s, keys, count, ahead).run();
  }
  static void values(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange* seen, size_t count,
                     const Ahead& ahead) {
    ValueForm form(p, s, values, count, ahead);
    const KeyRange all = seen_by_all(seen, p.rows, count);
    bool some_apart = false;
    if (all.begin > 0 || all.end < count)
      for (size_t k = 0; k < count; ++k)
        if (!all_finite(values + k * p.value_size * sizeof(uint16_t), p.value_size)) form.apart.add(k), some_apart = true;
    form.run();
    if (some_apart) add_apart(p, s, values, seen, count, form.apart);
  }
  static void end(const AttendArgs& p, const AttendScratch&) { ColumnOrder::to_columns(p); }

 private:
  // Tiles of 16 rows in lanes × 32 elements, those of 16 rows in turn.
  static void pack_queries(const AttendArgs& p, const AttendScratch& s) {
    uint8_t* to = reinterpret_cast<uint8_t*>(s.queries);
    for (size_t row = 0; row < p.rows; row += kTileRows)
      for (size_t d = 0; d < p.key_size; d += kBlockInputs, to += kTileBytes) {
        Simd::F square[kTileRows];
        for (size_t i = 0; i < kTileRows; ++i) {
          const float* const from = p.queries + (row + i) * s.key_ld + d;
          square[i] = row + i < p.rows
                          ? _mm512_castsi512_ps(bits_of(rounded(Simd::load(from), Simd::load(from + Simd::kWidth))))
                          : Simd::zero();
        }
        Simd::transpose(square);
        for (size_t i = 0; i < kTileRows; ++i) store_line(to + i * kTileRowBytes, _mm512_castps_si512(square[i]));
      }
  }

  static void add_apart(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange* seen,
                        size_t count, const KeySet& apart) {
    pair_rows(s.scores, count, s.lanes, s.weights);
    for (size_t k = 0; k < count; ++k)
      for (size_t r = 0; apart.has(k) && r < p.rows; ++r)
        for (size_t column = 0; seen[r].begin <= k && k < seen[r].end && column < p.value_size;
             column += HalfValueTile::kColumns)
          HalfValueTile::run<1>(p, s, values, {k, k + 1}, r, column, false, {nullptr, 0});
  }
};

void attend(const AttendArgs& p) {
  const bool half = p.type == DataType::kBF16 && p.key_size % 2 == 0;
  const bool tiles = half && p.rows >= kTileRowsLeast && p.range.end - p.range.begin >= kTileKeysLeast;
  tiles ? attend_with<TileAttention>(p) : avx512_bf16::kIsaTable.ops->attend(p);
}
