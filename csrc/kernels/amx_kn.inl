// [K,N]: tokens in rows are operand A, weights interleaved in pairs of inputs are B, tile after tile in scratch. A tile of
// the result holds 16 tokens' outputs, in the order in which interleaving left them. Included inside an ISA namespace.

template <DataType T>
inline const uint8_t* weights_at(const void* w, size_t ldw, size_t k, size_t column) {
  return static_cast<const uint8_t*>(w) + (k * ldw + column * kTileOutputs) * size_of(T);
}

// Of `count` columns, the outputs that there are.
inline size_t outputs_in(size_t n, size_t column, size_t count) {
  const size_t left = n - column * kTileOutputs;
  return left < count * kTileOutputs ? left : count * kTileOutputs;
}

// Brings a tile's outputs into their order and into the rows of C.
ORT_HINA_NOINLINE void finish_kn(const MatmulArgs& p, size_t column, size_t block, const float* sum, bool add) {
  const size_t token = block * kBlockTokens;
  const size_t count = p.m - token < kBlockTokens ? p.m - token : kBlockTokens;
  const Outputs outputs = outputs_of(column, p.n);
  // Low and high tiles share 32 outputs, which begin at an even column.
  const size_t first = column / 2 * 2 * kTileOutputs;
  const size_t left = p.n - first;
  float* c = p.c + token * p.ldc + first;
  for (size_t t = 0; t < count; ++t, c += p.ldc) {
    const __m512 x = _mm512_load_ps(sum + t * kTileOutputs);
    if (outputs == Outputs::kPlain) {
      store_sum(c, head16(left), x, add);
      continue;
    }
    // Groups of four outputs, in the order 0, 2, 1, 3: the first two of a tile go to every other group of 16 outputs, the
    // last two to those of the next 16.
    const __m512 groups = _mm512_shuffle_f32x4(x, x, 0xd8);
    const size_t at = outputs == Outputs::kLow ? 0 : 4;
    store_sum(c + at, 0x0f0f & head16(left - at), groups, add);
    store_sum(c + at + 12, 0xf0f0 & head16(left - at - 12), groups, add);
  }
}

// More than 16 tokens: a block of weights is interleaved into L2 once and serves all of them; the next block is interleaved
// between the products of this one.
constexpr size_t kStripSteps = kPanelInputs / kBlockInputs;
// Columns in scratch begin in different sets of L1: the rows of 12 of them are written in turn.
constexpr size_t kStripBytes = kStripSteps * kTileBytes + 64;

template <DataType T>
struct FormKN {
  static constexpr bool kWeightsAreA = false;
  static constexpr bool kStreamA = false;
  static constexpr size_t kWeightStep = kTileBytes;
  static constexpr size_t kTokenStep = kTileRowBytes;
  static constexpr size_t sum_stride = kTileRowBytes;
  static constexpr bool resume = false;
  // A line's sums, a copy of the last block of tokens, then two blocks' weights.
  static constexpr size_t kTokensAt = kMostLine * kTileBytes;
  static constexpr size_t kStripsAt = kTokensAt + kCopiedTileBytes;
  static constexpr size_t kScratch = kStripsAt + 2 * kMostColumns * kStripBytes;

  const MatmulArgs& p;
  const Walk& walk;
  Interleaver<T> ahead;
  Panel panel{};
  size_t steps = 0;
  size_t first_column = 0;
  size_t first_block = 0;
  bool add = false;
  bool second = false;  // which half of the strips is read

  FormKN(const MatmulArgs& args, const Walk& walk) : p(args), walk(walk) {}

  uint8_t* scratch(size_t at) const { return static_cast<uint8_t*>(p.scratch) + at; }
  uint8_t* strips(bool half) const { return scratch(kStripsAt + (half ? kMostColumns * kStripBytes : 0)); }
  size_t tail_tokens() const { return p.m % kBlockTokens; }
  const uint8_t* token(size_t t) const {
    return reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.a) + t * p.lda + panel.begin);
  }

  const uint8_t* weights_of(const Place& place) const {
    return weights_at<T>(p.w, p.ldw, walk.panels[place.panel].begin, place.column);
  }
  const uint8_t* after(Place place) const {
    if (walk.advance(place)) return weights_of(place);
    return static_cast<const uint8_t*>(p.next_w);
  }
  Interleaver<T> interleaver(const Place& place, bool half) const {
    Interleaver<T> work;
    work.from = weights_of(place);
    work.row_bytes = p.ldw * size_of(T);
    work.inputs = walk.panels[place.panel].inputs;
    work.outputs = outputs_in(p.n, place.column, place.count);
    work.after = after(place);
    work.to = strips(half);
    work.column_bytes = kStripBytes;
    return work;
  }

  void begin(const Place& place, const Place* next) {
    panel = walk.panels[place.panel];
    steps = panel.steps;
    first_column = place.column;
    add = place.panel > 0;
    // Rows beyond the last token must not be read.
    if (place.column == 0 && tail_tokens())
      copy_rows<DataType::kBF16>(token(p.m - tail_tokens()), p.lda * sizeof(uint16_t), tail_tokens(),
                                 steps * kBlockInputs, scratch(kTokensAt));
    if (place.column == 0 && place.panel == 0) interleaver(place, second).finish();
    ahead = {};
    if (!next) return;
    ahead = interleaver(*next, !second);
    const size_t block_steps = walk.steps(place);
    ahead.pairs_per_step = block_steps ? (ahead.pairs() + block_steps - 1) / block_steps : 0;
  }
  void end() {
    ahead.finish();
    second = !second;
  }

  Operand weights(size_t i) const { return {strips(second) + i * kStripBytes, kTileRowBytes}; }
  Operand tokens(size_t j) const {
    const size_t first = (first_block + j) * kBlockTokens;
    if (p.m - first < kBlockTokens) return {scratch(kTokensAt), kCopiedRowBytes};
    return {token(first), p.lda * sizeof(uint16_t)};
  }
  float* sum(size_t, size_t, size_t slot) const { return static_cast<float*>(p.scratch) + slot * kTileFloats; }
  void finish(size_t i, size_t j, const float* sum) const { finish_kn(p, first_column + i, first_block + j, sum, add); }
};

template <DataType T>
void tiles_kn(const MatmulArgs& p) {
  configure_tiles();
  const Walk walk(p, Order::kColumnsFirst);
  FormKN<T> form(p, walk);
  run_blocks(form, walk);
}
