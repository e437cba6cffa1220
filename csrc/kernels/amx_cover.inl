// Covers a grid of C tiles, `columns` of 16 outputs by `rows` blocks of tokens, with the shapes of the micro-kernels so that
// the whole takes about one tile load for each product. Squares do it where both counts are even. An odd count leaves a row
// (or column) over, and lines of its own would cost up to two loads for a product. Instead
//   5 rows of two columns are two ells that share the middle row: one load for each product;
//   5 columns of two rows likewise;
//   3 rows of two columns are an ell and one cell, and such cells wait and make lines of 6.
// Included inside an ISA namespace.

// Of one grid; 12 make up a whole line of waiting cells.
constexpr size_t kMostColumns = 12;

// `Form`: how operands and sums lie in memory. weights(column) and tokens(row) are the operands of the panel at hand,
// sum(column, row, slot) is where a tile of C goes (slot: its number within a piece), in rows `sum_stride` bytes apart,
// `resume` whether it begins with what lies there, finish(column, row, sum) brings it into the caller's C, and `ahead` is what
// the micro-kernels do beside.
template <class Form>
class Cover {
 public:
  explicit Cover(Form& form) : form_(form) {}

  void run(size_t columns, size_t rows) {
    if (rows == 1) return one_row(columns);
    const bool five = columns % 2 && columns >= 5;
    const size_t paired = columns - (five ? 5 : columns % 2);
    for (size_t c = 0; c < paired; c += 2) two_columns(c, rows);
    if (five) five_columns(paired, rows);
    if (columns % 2 && !five) one_column(paired, rows);
    do_waiting(rows - 1);
  }

  // 64 outputs: four products in flight hide the time that one takes.
  void one_row(size_t columns) {
    const size_t row = 0;
    for (size_t c = 0; c < columns; c += kMostShortLine) {
      const size_t left = columns - c;
      const size_t line[] = {c, c + 1, c + 2, c + 3};
      piece<kLine, true>(line, left < kMostShortLine ? left : kMostShortLine, &row, 1);
    }
  }

 private:
  enum Shape { kSquare, kEll, kLine };

  void do_waiting(size_t row) {
    for (size_t i = 0; i < waiting_count_; i += kMostLine) {
      const size_t left = waiting_count_ - i;
      piece<kLine, true>(waiting_ + i, left < kMostLine ? left : kMostLine, &row, 1);
    }
    waiting_count_ = 0;
  }
  void one_column(size_t column, size_t rows) {
    for (size_t r = 0; r < rows; r += kMostLine) {
      const size_t left = rows - r;
      const size_t line[] = {r, r + 1, r + 2, r + 3, r + 4, r + 5};
      piece<kLine, false>(line, left < kMostLine ? left : kMostLine, &column, 1);
    }
  }
  void two_columns(size_t c, size_t rows) {
    size_t r = 0;
    if (rows == 3) {
      ell<true>(c, c + 1, 0, 1, 2);
      wait(c + 1);
      return;
    }
    if (rows % 2) {
      ell<true>(c, c + 1, 0, 1, 2);
      ell<true>(c + 1, c, 3, 4, 2);
      r = 5;
    }
    for (; r < rows; r += 2) {
      const size_t x[] = {c, c + 1}, y[] = {r, r + 1};
      piece<kSquare, true>(x, 2, y, 2);
    }
  }
  void five_columns(size_t c, size_t rows) {
    for (size_t r = 0; r + 2 <= rows; r += 2) {
      ell<false>(r, r + 1, c, c + 1, c + 2);
      ell<false>(r + 1, r, c + 3, c + 4, c + 2);
    }
    for (size_t i = 0; i < 5 && rows % 2; ++i) wait(c + i);
  }
  void wait(size_t column) { waiting_[waiting_count_++] = column; }

  template <bool kXIsWeights>
  void ell(size_t x0, size_t x1, size_t y0, size_t y1, size_t y2) {
    const size_t x[] = {x0, x1}, y[] = {y0, y1, y2};
    piece<kEll, kXIsWeights>(x, 2, y, 3);
  }

  template <Shape kShape, bool kXIsWeights>
  ORT_HINA_NOINLINE void piece(const size_t* x, size_t x_count, const size_t* y, size_t y_count) {
    Piece p;
    p.x_step = kXIsWeights ? Form::kWeightStep : Form::kTokenStep;
    p.y_step = kXIsWeights ? Form::kTokenStep : Form::kWeightStep;
    p.steps = form_.steps;
    p.resume = form_.resume;
    p.sum_stride = form_.sum_stride;
    for (size_t i = 0; i < x_count; ++i) p.x[i] = kXIsWeights ? form_.weights(x[i]) : form_.tokens(x[i]);
    for (size_t j = 0; j < y_count; ++j) p.y[j] = kXIsWeights ? form_.tokens(y[j]) : form_.weights(y[j]);

    struct {
      size_t column, row;
    } cells[kMostLine];
    size_t count = 0;
    const auto add = [&](size_t x_at, size_t y_at) {
      cells[count] = {kXIsWeights ? x_at : y_at, kXIsWeights ? y_at : x_at};
      p.sums[count] = form_.sum(cells[count].column, cells[count].row, count);
      ++count;
    };
    const size_t whole_y = kShape == kLine ? 1 : 2;
    for (size_t i = 0; i < x_count; ++i)
      for (size_t j = 0; j < whole_y; ++j) add(x[i], y[j]);
    if (kShape == kEll) add(x[0], y[2]);

    using R = Roles<kXIsWeights == Form::kWeightsAreA, Form::kStreamA>;
    if constexpr (kShape == kSquare) square_sums<R>(p, form_.ahead);
    if constexpr (kShape == kEll) ell_sums<R>(p, form_.ahead);
    if constexpr (kShape == kLine) line_sums<R>(x_count, p, form_.ahead);
    for (size_t i = 0; i < count; ++i) form_.finish(cells[i].column, cells[i].row, p.sums[i]);
  }

  Form& form_;
  size_t waiting_[kMostColumns];  // columns whose cell in the last row is still to do
  size_t waiting_count_ = 0;
};
