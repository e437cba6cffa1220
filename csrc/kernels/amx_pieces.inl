// The micro-kernels: tiles of C that share loads of their operands, over all inputs of a panel. A C tile stays in its
// register meanwhile. Eight registers allow three shapes, written over x and y, of which one side is the weights and the
// other the tokens:
//   square  2 x · 2 y               4 loads for 4 products
//   ell     2 x · 2 y, and x0·y2    5 loads for 5 products
//   line    1 to 6 x · 1 y          one load more than products
// `Ahead` is work for what comes next, a little of it with each step, which the products leave time for. Included inside an
// ISA namespace.

constexpr int kMostLine = 6;

struct Operand {
  const uint8_t* at;
  size_t stride;
};

// Weights that will be wanted next, fetched to L2 row by row, in the order in which they lie. To L1 they would evict each
// other: at row distances of a multiple of 4 KB all rows share one set.
struct Prefetch {
  const uint8_t* row = nullptr;
  size_t row_bytes = 0;
  size_t run = 0;  // bytes of each row
  size_t rows = 0;
  const uint8_t* then_row = nullptr;  // rows that follow elsewhere
  size_t then_rows = 0;
  size_t lines_per_step = 0;
  size_t at = 0;

  void step() { fetch(lines_per_step); }
  void fetch(size_t lines) {
    for (; lines && rows; --lines) {
      _mm_prefetch(reinterpret_cast<const char*>(row + at), _MM_HINT_T1);
      at += 64;
      if (at >= run) next_row();
    }
  }
  void next_row() {
    at = 0;
    row += row_bytes;
    if (--rows == 0) begin_then();
  }
  void begin_then() {
    row = then_row;
    rows = then_rows;
    then_rows = 0;
  }
};

struct Nothing {
  void step() {}
};

// Operands and sums of a shape: sums[i*count of y + j] is x_i · y_j, and the last one an ell's x0 · y2.
struct Piece {
  Operand x[kMostLine];
  Operand y[kMostLine];
  float* sums[kMostLine];
  size_t sum_stride;      // bytes from one of a tile's rows to the next
  size_t x_step, y_step;  // bytes from one step of 32 inputs to the next
  size_t steps;
  bool resume;  // add to what `sums` hold
};

template <int kCount>
inline void begin_sums(const Piece& p) {
  for_each_index<kCount>([&](auto i) {
    constexpr int kI = decltype(i)::value;
    p.resume ? tile_load<kI>(p.sums[kI], p.sum_stride) : tile_zero<kI>();
  });
}

template <int kCount>
inline void end_sums(const Piece& p) {
  for_each_index<kCount>([&](auto i) { tile_store<decltype(i)::value>(p.sums[decltype(i)::value], p.sum_stride); });
}

// Which operand x is, and whether A is read past the caches.
template <bool kXIsA, bool kStreamA>
struct Roles {
  template <int kTile, bool kIsX>
  static void load(const uint8_t* at, size_t stride) {
    if constexpr (kStreamA && kIsX == kXIsA)
      tile_stream_load<kTile>(at, stride);
    else
      tile_load<kTile>(at, stride);
  }
  template <int kTile>
  static void load_x(const uint8_t* at, size_t stride) { load<kTile, true>(at, stride); }
  template <int kTile>
  static void load_y(const uint8_t* at, size_t stride) { load<kTile, false>(at, stride); }
  template <int kC, int kX, int kY>
  static void multiply() { kXIsA ? tile_multiply<kC, kX, kY>() : tile_multiply<kC, kY, kX>(); }
};

template <class R, class Ahead>
ORT_HINA_NOINLINE void square_sums(const Piece& p, Ahead& ahead) {
  Ahead work = ahead;
  const uint8_t *x0 = p.x[0].at, *x1 = p.x[1].at, *y0 = p.y[0].at, *y1 = p.y[1].at;
  const size_t x0_stride = p.x[0].stride, x1_stride = p.x[1].stride, y0_stride = p.y[0].stride, y1_stride = p.y[1].stride;
  begin_sums<4>(p);
  for (size_t s = 0; s < p.steps; ++s) {
    work.step();
    R::template load_x<4>(x0, x0_stride);
    R::template load_y<6>(y0, y0_stride);
    R::template multiply<0, 4, 6>();
    R::template load_y<7>(y1, y1_stride);
    R::template multiply<1, 4, 7>();
    R::template load_x<5>(x1, x1_stride);
    R::template multiply<2, 5, 6>();
    R::template multiply<3, 5, 7>();
    x0 += p.x_step, x1 += p.x_step, y0 += p.y_step, y1 += p.y_step;
  }
  end_sums<4>(p);
  ahead = work;
}

template <class R, class Ahead>
ORT_HINA_NOINLINE void ell_sums(const Piece& p, Ahead& ahead) {
  Ahead work = ahead;
  const uint8_t *x0 = p.x[0].at, *x1 = p.x[1].at, *y0 = p.y[0].at, *y1 = p.y[1].at, *y2 = p.y[2].at;
  begin_sums<5>(p);
  for (size_t s = 0; s < p.steps; ++s) {
    work.step();
    R::template load_x<5>(x0, p.x[0].stride);
    R::template load_y<6>(y2, p.y[2].stride);
    R::template multiply<4, 5, 6>();
    R::template load_y<7>(y0, p.y[0].stride);
    R::template multiply<0, 5, 7>();
    R::template load_y<6>(y1, p.y[1].stride);
    R::template multiply<1, 5, 6>();
    R::template load_x<5>(x1, p.x[1].stride);
    R::template multiply<2, 5, 7>();
    R::template multiply<3, 5, 6>();
    x0 += p.x_step, x1 += p.x_step, y0 += p.y_step, y1 += p.y_step, y2 += p.y_step;
  }
  end_sums<5>(p);
  ahead = work;
}

// The x take turns in the registers that the sums and y leave; in those from 4 on, so that one configuration with fewer rows
// of tokens suits all lines up to 4.
constexpr int kMostShortLine = 4;
template <class R, int kX, class Ahead>
void line_sums(const Piece& p, Ahead& ahead) {
  constexpr int kFirst = kX < kMostShortLine ? kMostShortLine : kX;
  Ahead work = ahead;
  const uint8_t* x[kX];
  for (int i = 0; i < kX; ++i) x[i] = p.x[i].at;
  const uint8_t* y = p.y[0].at;
  begin_sums<kX>(p);
  for (size_t s = 0; s < p.steps; ++s) {
    work.step();
    R::template load_y<7>(y, p.y[0].stride);
    for_each_index<kX>([&](auto i) {
      constexpr int kI = decltype(i)::value;
      constexpr int kTile = kFirst + kI % (kTiles - 1 - kFirst);
      R::template load_x<kTile>(x[kI], p.x[kI].stride);
      R::template multiply<kI, kTile, 7>();
      x[kI] += p.x_step;
    });
    y += p.y_step;
  }
  end_sums<kX>(p);
  ahead = work;
}

template <class R, class Ahead>
ORT_HINA_NOINLINE void line_sums(size_t count, const Piece& p, Ahead& ahead) {
  switch (count) {
    case 1: return line_sums<R, 1>(p, ahead);
    case 2: return line_sums<R, 2>(p, ahead);
    case 3: return line_sums<R, 3>(p, ahead);
    case 4: return line_sums<R, 4>(p, ahead);
    case 5: return line_sums<R, 5>(p, ahead);
    default: return line_sums<R, 6>(p, ahead);
  }
}
