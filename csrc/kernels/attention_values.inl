// Values of a block of keys, weighted and added to what each row has. Included inside an ISA namespace, after
// attention_softmax.inl.

// sums[r] = rescale[r]·sums[r] + Σ_k weights[k, r] · value k, for one tile of columns. `Whole`: they fill the vectors.
template <DataType T, int Rows, int Vectors, bool Whole>
__attribute__((noinline)) void value_tile(const float* weights, size_t lanes, const uint8_t* values, size_t row_bytes,
                                          KeyRange keys, size_t columns, const float* rescale, float* sums, size_t ld,
                                          Lines lines) {
  constexpr size_t kW = Simd::kWidth;
  Simd::F acc[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      acc[r][v] = Simd::mul(Simd::load(sums + r * ld + v * kW), Simd::set1(rescale ? rescale[r] : 1.0f));
  for (size_t k = keys.begin; k < keys.end; ++k) {
    lines.fetch<lines_of(1, Vectors * kW * size_of(T))>();
    const uint8_t* const at = values + k * row_bytes;
    Simd::F x[Vectors];
    for (int v = 0; v < Vectors; ++v)
      x[v] = Whole ? Weights<T>::load(at + v * kW * size_of(T)) : Weights<T>::load_head(at, columns);
    for (int r = 0; r < Rows; ++r) {
      const Simd::F weight = Simd::set1(weights[k * lanes + r]);
      for (int v = 0; v < Vectors; ++v) acc[r][v] = Simd::fma(weight, x[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) Simd::store(sums + r * ld + v * kW, acc[r][v]);
}

// The keys that all of these rows see, of a block of `count`; `seen` null: each sees all.
inline KeyRange seen_by_all(const KeyRange* seen, size_t rows, size_t count) {
  KeyRange all = {0, count};
  for (size_t r = 0; seen && r < rows; ++r) {
    if (seen[r].begin > all.begin) all.begin = seen[r].begin;
    if (seen[r].end < all.end) all.end = seen[r].end;
  }
  if (all.begin > all.end) all.begin = all.end;
  return all;
}

// Values of one block for all rows. `Tile` has kRows, kColumns, lines(keys) and
// run<Rows>(args, scratch, values, keys, row, column, rescale, lines), where `rescale` says whether to.
// A weight of 0 would still let a NaN through: a row reads the values that it sees and no others.
template <class Tile>
struct AddValues {
  const AttendArgs& p;
  const AttendScratch& s;
  const uint8_t* values;
  const KeyRange* seen;  // of each row, in the block; null: all of it
  size_t count;
  Ahead ahead;

  void run() {
    for (size_t column = 0; column < p.value_size; column += Tile::kColumns) {
      size_t row = 0;
      row = add<Tile::kRows>(row, column);
      if constexpr (Tile::kRows > 4) row = add<4>(row, column);
      row = add<2>(row, column);
      add<1>(row, column);
    }
  }

 private:
  template <int Rows>
  size_t add(size_t row, size_t column) {
    for (; row + Rows <= p.rows; row += Rows) {
      const KeyRange all = seen_by_all(seen ? seen + row : nullptr, Rows, count);
      // The first rows fetch.
      const Lines lines = row == 0 ? ahead.take(Tile::lines(all.end - all.begin)) : ahead.nothing();
      Tile::template run<Rows>(p, s, values, all, row, column, true, lines);
      for (size_t r = row; seen && r < row + Rows; ++r) add_rest(r, column, all);
    }
    return row;
  }
  // What this row sees of the block and others do not.
  void add_rest(size_t r, size_t column, const KeyRange& all) {
    const size_t before = seen[r].end < all.begin ? seen[r].end : all.begin;
    const size_t after = seen[r].begin > all.end ? seen[r].begin : all.end;
    const KeyRange rest[] = {{seen[r].begin, before}, {after, seen[r].end}};
    for (const KeyRange& keys : rest)
      if (keys.begin < keys.end) Tile::template run<1>(p, s, values, keys, r, column, false, ahead.nothing());
  }
};

// In f32.
template <DataType T>
struct ValueTile {
  static constexpr int kRows = kValueRows;
  static constexpr size_t kColumns = kValueVectors * Simd::kWidth;
  static size_t lines(size_t keys) { return keys * lines_of(1, kColumns * size_of(T)); }

  template <int Rows>
  static void run(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange& keys, size_t row,
                  size_t column, bool rescale, const Lines& lines) {
    const size_t row_bytes = p.value_size * size_of(T), left = p.value_size - column;
    float* const sums = p.state.values + row * p.state.ld + column;
    const float* const factors = rescale ? s.rescale + row : nullptr;
    const float* const weights = s.scores + row;
    const uint8_t* const from = values + column * size_of(T);
    if (left >= kColumns)
      return value_tile<T, Rows, kValueVectors, true>(weights, s.lanes, from, row_bytes, keys, left, factors, sums, p.state.ld,
                                                      lines);
    size_t i = 0;
    for (; i + Simd::kWidth <= left; i += Simd::kWidth)
      value_tile<T, Rows, 1, true>(weights, s.lanes, from + i * size_of(T), row_bytes, keys, left - i, factors, sums + i,
                                   p.state.ld, lines);
    if (i < left)
      value_tile<T, Rows, 1, false>(weights, s.lanes, from + i * size_of(T), row_bytes, keys, left - i, factors, sums + i,
                                    p.state.ld, lines);
  }
};
