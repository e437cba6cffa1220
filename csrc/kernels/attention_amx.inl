// Attention over bf16 caches with tiles; rounding is that of attention_bf16.inl. Included inside an ISA namespace, after
// attention_amx_values.inl.

// Fewer rows leave most of the tiles empty; for fewer keys tiles are not worth their configuration.
constexpr size_t kTileRowsLeast = 8, kTileKeysLeast = 16;

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
