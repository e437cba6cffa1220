// Values on AMX: weights in rows are operand A, 16 columns of values are B, whose rows are interleaved in pairs into scratch
// once for all rows. Included inside an ISA namespace, after attention_amx_scores.inl.

constexpr size_t kKeySteps = kAttentionKeys / kBlockInputs;  // of a block's values

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
