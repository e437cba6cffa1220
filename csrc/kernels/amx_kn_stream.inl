// [K,N], up to 16 tokens: weights are read in the order in which they lie, whole rows of all n outputs, 64 rows at a time.
// Down a column slice every cache line would be on another page. Included inside an ISA namespace.

// Between two groups of rows the sums of all outputs wait in scratch (64 n bytes, L2). A tile of them is loaded and stored
// once in two products: 24 of the 600 cycles that its weights take to arrive. 64 outputs of a group are interleaved into one
// half of an 8 + 8 KB buffer in L1 while the products of the 64 before them run: what was just stored reaches a tile load
// only after it has left the store buffer.
constexpr size_t kGroupInputs = 2 * kBlockInputs;
constexpr size_t kGroupColumnBytes = kGroupInputs / kBlockInputs * kTileBytes;
constexpr size_t kGroupBufferBytes = kStreamColumns * kGroupColumnBytes;
// How far ahead of its use a line is fetched.
constexpr size_t kStreamAheadBytes = 32768;

struct StreamPlace {
  size_t k = 0, column = 0;
  size_t panel = 0;
};

template <DataType T>
struct StreamKN {
  static constexpr bool kWeightsAreA = false;
  static constexpr bool kStreamA = false;
  static constexpr size_t kWeightStep = kTileBytes;
  static constexpr size_t kTokenStep = kTileRowBytes;
  static constexpr size_t sum_stride = kTileRowBytes;

  const MatmulArgs& p;
  const Panels panels;
  const size_t columns;
  Nothing ahead;
  StreamPlace at;
  const uint8_t* buffer = nullptr;
  size_t steps = 0;
  bool resume = false;

  explicit StreamKN(const MatmulArgs& args)
      : p(args), panels(args.k), columns((args.n + kTileOutputs - 1) / kTileOutputs) {}

  size_t panel_end(const StreamPlace& place) const {
    const Panel panel = panels[place.panel];
    return panel.begin + panel.inputs;
  }
  size_t inputs(const StreamPlace& place) const {
    const size_t left = panel_end(place) - place.k;
    return left < kGroupInputs ? left : kGroupInputs;
  }
  size_t count(const StreamPlace& place) const {
    const size_t left = columns - place.column;
    return left < kStreamColumns ? left : kStreamColumns;
  }
  bool advance(StreamPlace& place) const {
    place.column += count(place);
    if (place.column < columns) return true;
    place.column = 0;
    place.k += inputs(place);
    if (place.k == panel_end(place)) ++place.panel;
    return place.panel < panels.count;
  }

  uint8_t* half(bool second) const {
    return static_cast<uint8_t*>(p.scratch) + FormKN<T>::kScratch - (second ? 1 : 2) * kGroupBufferBytes;
  }
  void interleave(const StreamPlace& place, bool second, Prefetch& prefetch) const {
    Interleaver<T> work;
    work.from = weights_at<T>(p.w, p.ldw, place.k, place.column);
    work.row_bytes = p.ldw * size_of(T);
    work.inputs = inputs(place);
    work.outputs = outputs_in(p.n, place.column, kStreamColumns);
    work.to = half(second);
    work.column_bytes = kGroupColumnBytes;
    work.pairs_per_step = work.pairs() / (kGroupInputs / 2);
    const size_t lines = 2 * ((work.outputs * size_of(T) + 63) / 64);
    for (size_t pair = 0; pair < kGroupInputs / 2; ++pair) {
      prefetch.fetch(lines);
      work.step();
    }
    work.finish();
  }
  void begin(const StreamPlace& place, bool second) {
    at = place;
    buffer = half(second);
    steps = padded_inputs(inputs(place)) / kBlockInputs;
    resume = place.k > panels[place.panel].begin;
  }

  Operand weights(size_t i) const { return {buffer + i * kGroupColumnBytes, kTileRowBytes}; }
  Operand tokens(size_t) const {
    return {reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.a) + at.k), p.lda * sizeof(uint16_t)};
  }
  float* sum(size_t i, size_t, size_t) const {
    const size_t sums = FormKN<T>::kScratch / sizeof(float);
    return static_cast<float*>(p.scratch) + sums + (at.column + i) * kTileFloats;
  }
  void finish(size_t i, size_t, const float* sum) const {
    const bool whole = at.k + inputs(at) == panel_end(at);
    if (whole) finish_kn(p, at.column + i, 0, sum, at.panel > 0);
  }
};

template <DataType T>
Prefetch stream_ahead(const MatmulArgs& p) {
  Prefetch fetch;
  fetch.row_bytes = p.ldw * size_of(T);
  fetch.run = p.n * size_of(T);
  const size_t group_bytes = kGroupInputs * fetch.run;
  const size_t ahead = (kStreamAheadBytes + group_bytes - 1) / group_bytes * kGroupInputs;
  const size_t first = ahead < p.k ? ahead : p.k;
  fetch.row = weights_at<T>(p.w, p.ldw, first, 0);
  fetch.rows = p.k - first;
  fetch.then_row = static_cast<const uint8_t*>(p.next_w);
  fetch.then_rows = p.next_w ? first : 0;
  if (fetch.rows == 0) fetch.begin_then();
  return fetch;
}

template <DataType T>
void stream_kn(const MatmulArgs& p) {
  // Lines keep weights in tiles 4, 5 and 6.
  configure_tiles(p.m, 0x70);
  StreamKN<T> form(p);
  Prefetch prefetch = stream_ahead<T>(p);
  StreamPlace place;
  bool second = false;
  form.interleave(place, second, prefetch);
  for (bool more = true; more; second = !second) {
    StreamPlace next = place;
    more = form.advance(next);
    if (more) form.interleave(next, !second, prefetch);
    form.begin(place, second);
    Cover<StreamKN<T>>(form).one_row(form.count(place));
    place = next;
  }
}

template <DataType T>
void matmul_kn(const MatmulArgs& p) {
  if (p.m == 0 || p.n == 0) return;
  const bool stream = p.m <= kBlockTokens && p.k > 0;
  stream ? stream_kn<T>(p) : tiles_kn<T>(p);
}
