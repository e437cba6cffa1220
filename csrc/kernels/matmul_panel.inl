// Many tokens, both layouts: a panel of kPanelK inputs × n outputs is widened (and for [N,K] transposed) once into scratch
// that stays in L2, and serves every token. Included inside an ISA namespace.

constexpr int kPanelVectors = 2;
constexpr size_t kPanelN = kPanelVectors * Simd::kWidth;
// One strip of the panel takes 16 KB, half of the smallest L1 in use: the other half streams the tokens.
constexpr size_t kPanelK = 16384 / (kPanelN * sizeof(float));

// Scratch holds strips of kPanelN outputs: strip s, input k, output n at [(s*depth + k)*kPanelN + n]. Outputs beyond n are 0.
template <DataType T>
void fill_panel_kn(const uint8_t* w, size_t ldw, size_t depth, size_t n, float* panel) {
  constexpr size_t kW = Simd::kWidth;
  for (size_t k = 0; k < depth; ++k) {
    const uint8_t* row = w + k * ldw * Weights<T>::kSize;
    for (size_t j = 0; j < n; j += kPanelN) {
      float* out = panel + (j * depth) + k * kPanelN;
      for (size_t v = 0; v < kPanelN; v += kW) {
        const size_t left = n > j + v ? n - j - v : 0;
        const uint8_t* p = row + (j + v) * Weights<T>::kSize;
        const Simd::F x = left >= kW ? Weights<T>::load(p) : left ? Weights<T>::load_head(p, left) : Simd::zero();
        Simd::store(out + v, x);
      }
    }
  }
}

template <DataType T>
void fill_panel_nk(const uint8_t* w, size_t ldw, size_t depth, size_t n, float* panel) {
  constexpr size_t kW = Simd::kWidth;
  const size_t row_bytes = ldw * Weights<T>::kSize;
  for (size_t j = 0; j < n; j += kPanelN)
    for (size_t v = 0; v < kPanelN; v += kW)
      for (size_t k = 0; k < depth; k += kW) {
        const size_t inputs = depth - k < kW ? depth - k : kW;
        Simd::F square[kW];
        for (size_t r = 0; r < kW; ++r) {
          if (j + v + r >= n) {
            square[r] = Simd::zero();
            continue;
          }
          const uint8_t* p = w + (j + v + r) * row_bytes + k * Weights<T>::kSize;
          square[r] = inputs == kW ? Weights<T>::load(p) : Weights<T>::load_head(p, inputs);
        }
        Simd::transpose(square);
        float* out = panel + j * depth + k * kPanelN + v;
        for (size_t i = 0; i < inputs; ++i) Simd::store(out + i * kPanelN, square[i]);
      }
}

// The weights of the next panel, fetched to L2 line by line while this one is computed: otherwise the memory would rest
// during the arithmetic and the arithmetic during the filling.
class NextPanel {
 public:
  // `rows` runs of `run` bytes, `distance` bytes apart, to be fetched during `steps` inputs of all tiles.
  NextPanel(const uint8_t* first, size_t rows, size_t run, size_t distance, size_t steps)
      : line_(first), row_(first), last_(first + (rows ? rows - 1 : 0) * distance), run_(run), distance_(distance) {
    const size_t lines = rows * ((run + kLine - 1) / kLine);
    sparse_ = lines * kSparse <= steps;
  }
  // One line in each of kSparse inputs is enough.
  bool sparse() const { return sparse_; }
  // Stays on the last line when all have been fetched.
  void fetch() {
    Simd::prefetch_l2(line_);
    const uint8_t* next = line_ + kLine;
    const bool in_row = next < row_ + run_;
    row_ = in_row || row_ == last_ ? row_ : row_ + distance_;
    line_ = in_row ? next : row_;
  }
  static constexpr size_t kSparse = 4;

 private:
  static constexpr size_t kLine = 64;
  const uint8_t* line_;
  const uint8_t* row_;
  const uint8_t* last_;
  size_t run_, distance_;
  bool sparse_;
};

template <int Rows>
inline void panel_step(const float* a, size_t lda, const float* strip, size_t k, Simd::F (&acc)[Rows][kPanelVectors]) {
  Simd::F weight[kPanelVectors];
  for (int v = 0; v < kPanelVectors; ++v) weight[v] = Simd::load(strip + k * kPanelN + v * Simd::kWidth);
  for (int r = 0; r < Rows; ++r) {
    const Simd::F x = Simd::set1(a[r * lda + k]);
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = Simd::fma(x, weight[v], acc[r][v]);
  }
}

template <int Rows>
inline void panel_tile(const float* a, size_t lda, const float* strip, size_t depth, float* c, size_t ldc, size_t n,
                       bool first, NextPanel& next_panel) {
  constexpr size_t kW = Simd::kWidth;
  constexpr size_t kStep = NextPanel::kSparse;
  Simd::F acc[Rows][kPanelVectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = Simd::zero();
  if (!first) {
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < kPanelVectors; ++v) {
        const float* sum = c + r * ldc + v * kW;
        const size_t left = n > v * kW ? n - v * kW : 0;
        if (left >= kW) acc[r][v] = Simd::load(sum);
        else if (left) acc[r][v] = Simd::load_head(sum, left);
      }
  }
  NextPanel next = next_panel;  // in registers
  size_t k = 0;
  if (next.sparse()) {
    for (; k + kStep <= depth; k += kStep) {
      next.fetch();
      for (size_t i = 0; i < kStep; ++i) panel_step<Rows>(a, lda, strip, k + i, acc);
    }
  }
  for (; k < depth; ++k) {
    next.fetch();
    panel_step<Rows>(a, lda, strip, k, acc);
  }
  next_panel = next;
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) {
      float* sum = c + r * ldc + v * kW;
      const size_t left = n > v * kW ? n - v * kW : 0;
      if (left >= kW) Simd::store(sum, acc[r][v]);
      else if (left) Simd::store_head(sum, acc[r][v], left);
    }
}

// The last rows of m, fewer than a tile has.
template <int Rows>
inline void panel_tail(size_t rows, const float* a, size_t lda, const float* strip, size_t depth, float* c, size_t ldc,
                       size_t n, bool first, NextPanel& next) {
  if constexpr (Rows > 0) {
    if (rows == Rows) panel_tile<Rows>(a, lda, strip, depth, c, ldc, n, first, next);
    else panel_tail<Rows - 1>(rows, a, lda, strip, depth, c, ldc, n, first, next);
  }
}

// The panel that begins at input k; behind the last one, the first of the matrix that comes next.
template <DataType T, Layout L>
inline NextPanel next_panel(const MatmulArgs& p, size_t k) {
  const uint8_t* w = static_cast<const uint8_t*>(k < p.k ? p.w : p.next_w);
  // Nothing follows: what is cached already is fetched, since an unmapped address would cost a walk of the page tables.
  if (!w) return NextPanel(reinterpret_cast<const uint8_t*>(p.scratch), 0, 0, 0, 0);
  if (k >= p.k) k = 0;
  const size_t depth = p.k - k < kPanelK ? p.k - k : kPanelK;
  const size_t steps = (p.m + Simd::kGemmRows - 1) / Simd::kGemmRows * ((p.n + kPanelN - 1) / kPanelN) * kPanelK;
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  if constexpr (L == Layout::kKN) return NextPanel(w + k * row_bytes, depth, p.n * Weights<T>::kSize, row_bytes, steps);
  else return NextPanel(w + k * Weights<T>::kSize, p.n, depth * Weights<T>::kSize, row_bytes, steps);
}

template <DataType T, Layout L>
void matmul_panel(const MatmulArgs& p) {
  constexpr size_t kM = Simd::kGemmRows;
  const uint8_t* w = static_cast<const uint8_t*>(p.w);
  for (size_t k = 0; k < p.k; k += kPanelK) {
    const size_t depth = p.k - k < kPanelK ? p.k - k : kPanelK;
    if constexpr (L == Layout::kKN) fill_panel_kn<T>(w + k * p.ldw * Weights<T>::kSize, p.ldw, depth, p.n, p.scratch);
    else fill_panel_nk<T>(w + k * Weights<T>::kSize, p.ldw, depth, p.n, p.scratch);
    NextPanel next = next_panel<T, L>(p, k + kPanelK);
    for (size_t j = 0; j < p.n; j += kPanelN) {
      const float* strip = p.scratch + j * depth;
      const size_t n = p.n - j < kPanelN ? p.n - j : kPanelN;
      const float* a = p.a + k;
      float* c = p.c + j;
      size_t m = 0;
      for (; m + kM <= p.m; m += kM)
        panel_tile<kM>(a + m * p.lda, p.lda, strip, depth, c + m * p.ldc, p.ldc, n, k == 0, next);
      panel_tail<kM - 1>(p.m - m, a + m * p.lda, p.lda, strip, depth, c + m * p.ldc, p.ldc, n, k == 0, next);
    }
  }
}
