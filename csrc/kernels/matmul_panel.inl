// Many tokens, both layouts: strips of kPanelK inputs × kPanelN outputs are widened (and for [N,K] transposed) once into
// scratch that stays in L2, and serve every token. Included inside an ISA namespace.

constexpr int kPanelVectors = Simd::kGemmVectors;
constexpr size_t kPanelN = kPanelVectors * Simd::kWidth;
// The sums in C are loaded and stored once in so many inputs. Fewer inputs would spend more on that than a strip in L1
// saves; more would crowd the next panel's weights out of L2.
constexpr size_t kPanelK = 256;
// Outputs of a panel: 192 KB of L2, and as much again for the panel that is fetched meanwhile.
constexpr uint32_t kPanelOutputs = 192;

// Scratch holds strips of kPanelN outputs, one after the other: input k, output n at [k*kPanelN + n]. Outputs beyond n are 0.
template <DataType T>
void fill_strip_kn(const uint8_t* w, size_t row_bytes, size_t depth, size_t n, float* packed) {
  constexpr size_t kW = Simd::kWidth;
  for (size_t k = 0; k < depth; ++k)
    for (size_t v = 0; v < kPanelN; v += kW) {
      const size_t left = n > v ? n - v : 0;
      const uint8_t* p = w + k * row_bytes + v * Weights<T>::kSize;
      const Simd::F x = left >= kW ? Weights<T>::load(p) : left ? Weights<T>::load_head(p, left) : Simd::zero();
      Simd::store(packed + k * kPanelN + v, x);
    }
}

template <DataType T>
void fill_strip_nk(const uint8_t* w, size_t row_bytes, size_t depth, size_t n, float* packed) {
  constexpr size_t kW = Simd::kWidth;
  for (size_t v = 0; v < kPanelN; v += kW)
    for (size_t k = 0; k < depth; k += kW) {
      const size_t inputs = depth - k < kW ? depth - k : kW;
      Simd::F square[kW];
      for (size_t r = 0; r < kW; ++r) {
        if (v + r >= n) {
          square[r] = Simd::zero();
          continue;
        }
        const uint8_t* p = w + (v + r) * row_bytes + k * Weights<T>::kSize;
        square[r] = inputs == kW ? Weights<T>::load(p) : Weights<T>::load_head(p, inputs);
      }
      Simd::transpose(square);
      for (size_t i = 0; i < inputs; ++i) Simd::store(packed + (k + i) * kPanelN + v, square[i]);
    }
}

// A strip in scratch.
struct PackedStrip {
  const float* packed;
  Simd::F weight(size_t k, int v) const { return Simd::load(packed + k * kPanelN + v * Simd::kWidth); }
};

// A whole strip of a [K, N] matrix, packed while the first tile uses it: the copy costs stores only, which the arithmetic
// hides.
template <DataType T>
struct StreamedStrip {
  const uint8_t* w;
  size_t row_bytes;
  float* packed;
  Simd::F weight(size_t k, int v) const {
    const Simd::F x = Weights<T>::load(w + k * row_bytes + v * Simd::kWidth * Weights<T>::kSize);
    Simd::store(packed + k * kPanelN + v * Simd::kWidth, x);
    return x;
  }
};

template <int Rows, class Strip>
inline void panel_step(const float* a, size_t lda, const Strip& strip, size_t k, Simd::F (&acc)[Rows][kPanelVectors]) {
  Simd::F weight[kPanelVectors];
  for (int v = 0; v < kPanelVectors; ++v) weight[v] = strip.weight(k, v);
  for (int r = 0; r < Rows; ++r) {
    const Simd::F x = Simd::set1(a[r * lda + k]);
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = Simd::fma(x, weight[v], acc[r][v]);
  }
}

template <int Rows, class Strip>
inline void panel_tile(const float* a, size_t lda, const Strip& strip, size_t depth, float* c, size_t ldc, size_t n,
                       bool first, PanelFetch& next_panel) {
  constexpr size_t kW = Simd::kWidth;
  constexpr size_t kStep = PanelFetch::kSparse;
  Simd::F acc[Rows][kPanelVectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = Simd::zero();
  PanelFetch next = next_panel;  // in registers
  size_t k = 0;
  if (next.sparse()) {
    for (; k + kStep <= depth; k += kStep) {
      next.fetch.line();
      for (size_t i = 0; i < kStep; ++i) panel_step<Rows, Strip>(a, lda, strip, k + i, acc);
    }
  }
  for (; k < depth; ++k) {
    next.step();
    panel_step<Rows, Strip>(a, lda, strip, k, acc);
  }
  next_panel = next;
  // The panel's sum is added to those before it as a whole: two short chains of additions instead of one long one, and a
  // fraction of its rounding error.
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kPanelVectors; ++v) {
      float* sum = c + r * ldc + v * kW;
      const size_t left = n > v * kW ? n - v * kW : 0;
      if (left >= kW) Simd::store(sum, first ? acc[r][v] : Simd::add(Simd::load(sum), acc[r][v]));
      else if (left) Simd::store_head(sum, first ? acc[r][v] : Simd::add(Simd::load_head(sum, left), acc[r][v]), left);
    }
}

// The last rows of m, fewer than a tile has.
template <int Rows, class Strip>
inline void panel_tail(size_t rows, const float* a, size_t lda, const Strip& strip, size_t depth, float* c, size_t ldc,
                       size_t n, bool first, PanelFetch& next) {
  if constexpr (Rows > 0) {
    if (rows == Rows) panel_tile<Rows, Strip>(a, lda, strip, depth, c, ldc, n, first, next);
    else panel_tail<Rows - 1, Strip>(rows, a, lda, strip, depth, c, ldc, n, first, next);
  }
}

// The panel that begins at input k; behind the last one, the first of the matrix that comes next.
template <DataType T, Layout L>
inline PanelFetch next_panel(const MatmulArgs& p, size_t k) {
  const size_t steps = (p.m + Simd::kGemmRows - 1) / Simd::kGemmRows * ((p.n + kPanelN - 1) / kPanelN) * kPanelK;
  if constexpr (L == Layout::kKN) return PanelFetch(rows_ahead<T>(p, k, kPanelK), steps);
  const uint8_t* w = static_cast<const uint8_t*>(k < p.k ? p.w : p.next_w);
  if (k >= p.k) k = 0;
  const size_t depth = p.k - k < kPanelK ? p.k - k : kPanelK;
  return PanelFetch({w ? w + k * size_of(T) : nullptr, p.n, depth * size_of(T), p.ldw * size_of(T)}, steps);
}

// All tiles of one strip. `Strip` serves the first of them, which may pack it for the others.
template <class Strip>
inline void panel_strip(const MatmulArgs& p, const Strip& strip, const float* packed, size_t k, size_t depth, size_t j,
                        PanelFetch& next) {
  constexpr size_t kM = Simd::kGemmRows;
  const size_t n = p.n - j < kPanelN ? p.n - j : kPanelN;
  const float* a = static_cast<const float*>(p.a) + k;
  float* c = p.c + j;
  const bool first = k == 0;
  if (p.m < kM) return panel_tail<kM - 1>(p.m, a, p.lda, strip, depth, c, p.ldc, n, first, next);
  panel_tile<kM>(a, p.lda, strip, depth, c, p.ldc, n, first, next);
  const PackedStrip rest = {packed};
  size_t m = kM;
  for (; m + kM <= p.m; m += kM)
    panel_tile<kM>(a + m * p.lda, p.lda, rest, depth, c + m * p.ldc, p.ldc, n, first, next);
  panel_tail<kM - 1>(p.m - m, a + m * p.lda, p.lda, rest, depth, c + m * p.ldc, p.ldc, n, first, next);
}

template <DataType T, Layout L>
void matmul_panel(const MatmulArgs& p) {
  const size_t row_bytes = p.ldw * Weights<T>::kSize;
  const uint8_t* w = static_cast<const uint8_t*>(p.w);
  for (size_t k = 0; k < p.k; k += kPanelK) {
    const size_t depth = p.k - k < kPanelK ? p.k - k : kPanelK;
    PanelFetch next = next_panel<T, L>(p, k + kPanelK);
    for (size_t j = 0; j < p.n; j += kPanelN) {
      float* packed = static_cast<float*>(p.scratch) + j * depth;
      const size_t n = p.n - j < kPanelN ? p.n - j : kPanelN;
      if constexpr (L == Layout::kKN) {
        const uint8_t* corner = w + k * row_bytes + j * Weights<T>::kSize;
        if (n == kPanelN) {
          panel_strip(p, StreamedStrip<T>{corner, row_bytes, packed}, packed, k, depth, j, next);
          continue;
        }
        fill_strip_kn<T>(corner, row_bytes, depth, n, packed);
      } else {
        fill_strip_nk<T>(w + j * row_bytes + k * Weights<T>::kSize, row_bytes, depth, n, packed);
      }
      panel_strip(p, PackedStrip{packed}, packed, k, depth, j, next);
    }
  }
}
