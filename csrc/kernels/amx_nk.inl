// [N,K]: 16 weight rows are operand A where they lie, tokens in lanes are B. A tile of the result holds 16 outputs of 16
// tokens, tokens in lanes. Included inside an ISA namespace.

ORT_HINA_NOINLINE void store_transposed(float* c, size_t ldc, size_t tokens, size_t outputs, const float* sum, bool add) {
  __m512 square[kTileRows];
  for (size_t n = 0; n < kTileRows; ++n) square[n] = _mm512_load_ps(sum + n * kBlockTokens);
  Simd::transpose(square);
  const __mmask16 mask = head16(outputs);
  if (tokens == kBlockTokens) {
    for (size_t t = 0; t < kBlockTokens; ++t) store_sum(c + t * ldc, mask, square[t], add);
  } else {
    for (size_t t = 0; t < tokens; ++t) store_sum(c + t * ldc, mask, square[t], add);
  }
}

template <DataType T, bool kStream>
struct FormNK {
  static constexpr bool kWeightsAreA = true;
  // Copied weights come from scratch and are near.
  static constexpr bool kStreamA = kStream && T == DataType::kBF16;
  static constexpr size_t kWeightStep = kTileRowBytes;
  static constexpr size_t kTokenStep = kTileBytes;
  static constexpr size_t sum_stride = kTileRowBytes;
  static constexpr bool resume = false;
  // A line's sums, then copies of a block's weights.
  static constexpr size_t kScratch = kMostLine * kTileBytes + kMostColumns * kCopiedTileBytes;
  // With many tokens, how far ahead weights are fetched: the next two columns. More would not stay in L2: at row distances
  // of a power of two only few of its sets are used.
  static constexpr size_t kRowsAhead = 2 * kTileRows;

  const MatmulArgs& p;
  const Walk& walk;
  Prefetch ahead;
  Panel panel{};
  size_t steps = 0;
  size_t first_column = 0;
  size_t first_block = 0;
  bool add = false;

  FormNK(const MatmulArgs& args, const Walk& walk) : p(args), walk(walk) {}

  const uint8_t* row(const void* w, size_t row, size_t panel) const {
    return static_cast<const uint8_t*>(w) + (row * p.ldw + walk.panels[panel].begin) * size_of(T);
  }
  size_t outputs(size_t column, size_t count = 1) const {
    const size_t left = p.n - column * kTileOutputs;
    return left < count * kTileOutputs ? left : count * kTileOutputs;
  }

  // Weights that are not bf16, too few rows for a tile, or a last step that would read beyond the rows' end.
  bool copied(size_t column) const {
    return T != DataType::kBF16 || panel.inputs % kBlockInputs || outputs(column) < kTileOutputs;
  }
  uint8_t* copy(size_t i) const {
    return static_cast<uint8_t*>(p.scratch) + kMostLine * kTileBytes + i * kCopiedTileBytes;
  }

  void begin(const Place& place, const Place* next) {
    panel = walk.panels[place.panel];
    steps = panel.steps;
    first_column = place.column;
    add = place.panel > 0;
    for (size_t i = 0; i < place.count; ++i)
      if (copied(first_column + i))
        copy_rows<T>(row(p.w, (first_column + i) * kTileOutputs, place.panel), p.ldw * size_of(T),
                     outputs(first_column + i), panel.inputs, copy(i));
    kStream ? look_a_block_ahead(next) : look_rows_ahead(place);
    const size_t lines = place.count * kTileRows * ((panel.inputs * size_of(T) + 63) / 64);
    const size_t block_steps = walk.steps(place);
    ahead.lines_per_step = block_steps ? (lines + block_steps - 1) / block_steps : 0;
  }
  void end() {}

  void look_a_block_ahead(const Place* next) {
    ahead = {};
    const void* w = next ? p.w : p.next_w;
    if (!w) return;
    const Place place = next ? *next : walk.first();
    ahead.row = row(w, place.column * kTileOutputs, place.panel);
    ahead.row_bytes = p.ldw * size_of(T);
    ahead.run = walk.panels[place.panel].inputs * size_of(T);
    ahead.rows = outputs(place.column, place.count);
  }
  // One stream through the rows of a panel, then the first ones of what follows.
  void look_rows_ahead(const Place& place) {
    if (place.column > 0) return;
    const size_t first = kRowsAhead < p.n ? kRowsAhead : p.n;
    const bool last = place.panel + 1 == walk.panels.count;
    const uint8_t* then = !last ? row(p.w, 0, place.panel + 1) : p.next_w ? row(p.next_w, 0, 0) : nullptr;
    ahead = {};
    ahead.row = row(p.w, first, place.panel);
    ahead.row_bytes = p.ldw * size_of(T);
    ahead.run = panel.inputs * size_of(T);
    ahead.rows = p.n - first;
    ahead.then_row = then;
    ahead.then_rows = then ? first : 0;
    if (ahead.rows == 0) ahead.begin_then();
  }

  Operand weights(size_t i) const {
    if (copied(first_column + i)) return {copy(i), kCopiedRowBytes};
    const size_t first = (first_column + i) * kTileOutputs;
    const uint16_t* rows = static_cast<const uint16_t*>(p.w) + first * p.ldw + panel.begin;
    return {reinterpret_cast<const uint8_t*>(rows), p.ldw * sizeof(uint16_t)};
  }
  Operand tokens(size_t j) const {
    const uint16_t* block = static_cast<const uint16_t*>(p.a) + (first_block + j) * kBlockTokens * p.lda;
    return {reinterpret_cast<const uint8_t*>(block + panel.begin * kBlockTokens), kTileRowBytes};
  }

  float* lanes(size_t i, size_t j) const {
    return p.c + (first_block + j) * kBlockTokens * p.ldc + (first_column + i) * kTileFloats;
  }
  bool stored_in_place(size_t i) const { return p.c_lanes && !add && outputs(first_column + i) == kTileOutputs; }
  float* sum(size_t i, size_t j, size_t slot) const {
    return stored_in_place(i) ? lanes(i, j) : static_cast<float*>(p.scratch) + slot * kTileFloats;
  }
  void finish(size_t i, size_t j, const float* sum) const {
    if (stored_in_place(i)) return;
    p.c_lanes ? finish_lanes(i, j, sum) : finish_rows(i, j, sum);
  }
  void finish_lanes(size_t i, size_t j, const float* sum) const {
    float* c = lanes(i, j);
    for (size_t n = 0; n < outputs(first_column + i); ++n)
      store_sum(c + n * kBlockTokens, 0xffff, _mm512_load_ps(sum + n * kBlockTokens), add);
  }
  void finish_rows(size_t i, size_t j, const float* sum) const {
    const size_t token = (first_block + j) * kBlockTokens;
    const size_t count = p.m - token < kBlockTokens ? p.m - token : kBlockTokens;
    float* c = p.c + token * p.ldc + (first_column + i) * kTileOutputs;
    store_transposed(c, p.ldc, count, outputs(first_column + i), sum, add);
  }
};

// Up to so many tokens, each weight tile is read once.
constexpr size_t kStreamTokensNK = 2 * kBlockTokens;

template <DataType T, bool kStream>
void run_nk(const MatmulArgs& p) {
  const Walk walk(p, kStream ? Order::kPanelsFirst : Order::kColumnsFirst);
  FormNK<T, kStream> form(p, walk);
  run_blocks(form, walk);
}

template <DataType T>
void matmul_nk(const MatmulArgs& p) {
  configure_tiles();
  p.m <= kStreamTokensNK ? run_nk<T, true>(p) : run_nk<T, false>(p);
}
