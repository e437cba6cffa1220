// Weights that are wanted next, fetched to L2 line by line in the order in which they lie, while others are computed with: the
// memory sees one long stream. Fetching each row ahead at its own column, or with loads, or to L1, reached 0.5 to 0.8 of the
// bandwidth that this does (Zen 4). Included inside an ISA namespace.
class FetchAhead {
 public:
  FetchAhead() = default;
  // `rows` runs of `run` bytes, `distance` bytes apart. `first` null: nothing.
  FetchAhead(const void* first, size_t rows, size_t run, size_t distance) {
    if (!first || !rows) return;
    if (distance == run) run *= rows, rows = 1;
    at_ = static_cast<const uint8_t*>(first), end_ = at_ + run, run_ = run, distance_ = distance, rows_ = rows - 1;
    lines_ = rows * ((run + kLine - 1) / kLine);
  }
  // How many lines there are in all.
  size_t lines() const { return lines_; }
  void line() {
    if (at_ >= end_) {
      if (!rows_) return;
      --rows_;
      at_ = end_ - run_ + distance_;
      end_ = at_ + run_;
    }
    Simd::prefetch_l2(at_);
    at_ += kLine;
  }
  void all() {
    while (at_ < end_ || rows_) line();
  }

 private:
  static constexpr size_t kLine = 64;
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  size_t run_ = 0, distance_ = 0, rows_ = 0, lines_ = 0;
};

// Lines spread over the steps of a panel's arithmetic.
struct PanelFetch {
  static constexpr size_t kSparse = 4;
  FetchAhead fetch;
  size_t steps, each;  // lines of each step, rounded up
  PanelFetch(const FetchAhead& ahead, size_t all_steps)
      : fetch(ahead), steps(all_steps), each((ahead.lines() + steps - 1) / steps) {}
  // One line in each of kSparse steps is enough.
  bool sparse() const { return fetch.lines() * kSparse <= steps; }
  void step() {
    for (size_t i = 0; i < each; ++i) fetch.line();
  }
};

// Weight rows [k, k + rows) of a [K,N] matrix, as many of them as there are; behind the last one, the first of the next matrix.
template <DataType T>
inline FetchAhead rows_ahead(const MatmulArgs& p, size_t k, size_t rows) {
  const size_t row_bytes = p.ldw * size_of(T);
  if (k >= p.k) return {p.next_w, rows < p.k ? rows : p.k, p.n * size_of(T), row_bytes};
  const uint8_t* first = static_cast<const uint8_t*>(p.w) + k * row_bytes;
  return {first, p.k - k < rows ? p.k - k : rows, p.n * size_of(T), row_bytes};
}
