// Attention of a block of query rows with an online softmax. Included inside an ISA namespace, after vector_ops.inl.
//
// Keys go by in blocks. Of each block every key is widened once for kQueryTile rows (the heads of a group lie beside each
// other), then the scores become weights, then each vector of the values is widened once for as many rows.

constexpr int kQueryTile = 4;
constexpr int kKeyTile = 2;

// tanh within 8 units u, relative. Up to 1/2 the Taylor series (what is left out is under 1e-8 of it), beyond that
// 1 - 2 / (1 + e^2y).
inline Simd::F tanh_f32(Simd::F y) {
  const float taylor[] = {-929569.0f / 638512875, 21844.0f / 6081075, -1382.0f / 155925, 62.0f / 2835,
                          -17.0f / 315,           2.0f / 15,          -1.0f / 3};
  const Simd::F square = Simd::mul(y, y), one = Simd::set1(1.0f), two = Simd::set1(2.0f);
  Simd::F p = Simd::set1(6404582.0f / 10854718875.0f);
  for (float c : taylor) p = Simd::fma(p, square, Simd::set1(c));
  const Simd::F small = Simd::fma(Simd::mul(p, square), y, y);
  const Simd::F large = Simd::sub(one, Simd::div(two, Simd::add(one, exp_f32(Simd::mul(two, y)))));
  return Simd::where_greater(square, Simd::set1(0.25f), large, small);
}

// scores[r·kAttentionKeys + j] = query r · key j
template <DataType T, int Rows, int Keys>
void dot_tile(const float* queries, size_t ld, const uint8_t* keys, size_t size, float* scores) {
  Simd::F sum[Rows][Keys], key[Keys];
  for (int r = 0; r < Rows; ++r)
    for (int j = 0; j < Keys; ++j) sum[r][j] = Simd::zero();
  for (size_t i = 0; i < size; i += Simd::kWidth) {
    for (int j = 0; j < Keys; ++j) {
      const uint8_t* at = keys + (j * size + i) * Weights<T>::kSize;
      key[j] = size - i < Simd::kWidth ? Weights<T>::load_head(at, size - i) : Weights<T>::load(at);
    }
    for (int r = 0; r < Rows; ++r) {
      const Simd::F query = Simd::load(queries + r * ld + i);
      for (int j = 0; j < Keys; ++j) sum[r][j] = Simd::fma(query, key[j], sum[r][j]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int j = 0; j < Keys; ++j) scores[r * kAttentionKeys + j] = Simd::sum(sum[r][j]);
}

template <DataType T, int Rows>
void dot_rows(const float* queries, size_t ld, const uint8_t* keys, size_t size, size_t count, float* scores) {
  size_t j = 0;
  for (; j + kKeyTile <= count; j += kKeyTile)
    dot_tile<T, Rows, kKeyTile>(queries, ld, keys + j * size * Weights<T>::kSize, size, scores + j);
  for (; j < count; ++j) dot_tile<T, Rows, 1>(queries, ld, keys + j * size * Weights<T>::kSize, size, scores + j);
}

// The part of a block of keys, counted from its first, that a row sees.
inline KeyRange within(const KeyRange& visible, const KeyRange& block) {
  const size_t begin = visible.begin > block.begin ? visible.begin : block.begin;
  const size_t end = visible.end < block.end ? visible.end : block.end;
  if (begin >= end) return {0, 0};
  return {begin - block.begin, end - block.begin};
}

// Adds the bias of the keys that are seen, and makes the others' scores -Inf.
inline void mask_scores(const AttendArgs& p, size_t row, size_t first_key, const KeyRange& seen, float* scores) {
  if (p.bias) {
    float bias[kAttentionKeys] = {};
    const uint8_t* from = static_cast<const uint8_t*>(p.bias[row]) + (first_key + seen.begin) * size_of(p.bias_type);
    widen(from, p.bias_type, seen.end - seen.begin, 1.0f, bias + seen.begin);
    for (size_t j = 0; j < kAttentionKeys; j += Simd::kWidth)
      Simd::store(scores + j, Simd::add(Simd::load(scores + j), Simd::load(bias + j)));
  }
  for (size_t j = 0; j < seen.begin; ++j) scores[j] = -kInf;
  for (size_t j = seen.end; j < kAttentionKeys; ++j) scores[j] = -kInf;
}

inline void scale_row(float* x, size_t n, float factor) {
  for (size_t i = 0; i < n; i += Simd::kWidth) Simd::store(x + i, Simd::mul(Simd::load(x + i), Simd::set1(factor)));
}

// Scores to e^(score - most), with what was summed before brought to the new maximum.
inline void weigh_scores(const AttentionState& state, size_t row, float* scores) {
  Simd::F most = Simd::set1(state.most[row]);
  for (size_t j = 0; j < kAttentionKeys; j += Simd::kWidth) most = Simd::max(Simd::load(scores + j), most);
  const float largest = Simd::largest(most);
  // Where everything is masked so far, -Inf less -Inf would be NaN.
  const float shift = largest == -kInf ? 0.0f : largest;
  Simd::F sum = Simd::zero();
  for (size_t j = 0; j < kAttentionKeys; j += Simd::kWidth) {
    const Simd::F e = exp_f32(Simd::sub(Simd::load(scores + j), Simd::set1(shift)));
    Simd::store(scores + j, e);
    sum = Simd::add(sum, e);
  }
  if (largest != state.most[row] && state.most[row] != -kInf) {
    float lanes[Simd::kWidth];
    Simd::store(lanes, exp_f32(Simd::set1(state.most[row] - shift)));
    state.sum[row] *= lanes[0];
    scale_row(state.values + row * state.ld, state.ld, lanes[0]);
  }
  state.most[row] = largest;
  state.sum[row] += Simd::sum(sum);
}

// values[r] += Σ_j weights[r, j] · value j, over keys [keys.begin, keys.end) of the block.
template <DataType T, int Rows>
void add_values(const float* weights, const uint8_t* values, size_t size, const KeyRange& keys, float* sums, size_t ld) {
  if (keys.begin >= keys.end) return;
  for (size_t i = 0; i < size; i += Simd::kWidth) {
    const size_t n = size - i;
    Simd::F sum[Rows];
    for (int r = 0; r < Rows; ++r) sum[r] = Simd::load(sums + r * ld + i);
    for (size_t j = keys.begin; j < keys.end; ++j) {
      const uint8_t* at = values + (j * size + i) * Weights<T>::kSize;
      const Simd::F value = n < Simd::kWidth ? Weights<T>::load_head(at, n) : Weights<T>::load(at);
      for (int r = 0; r < Rows; ++r) sum[r] = Simd::fma(Simd::set1(weights[r * kAttentionKeys + j]), value, sum[r]);
    }
    for (int r = 0; r < Rows; ++r) Simd::store(sums + r * ld + i, sum[r]);
  }
}

// Up to kQueryTile rows against one block of keys.
template <DataType T, int Rows>
void attend_tile(const AttendArgs& p, size_t row, const KeyRange& block) {
  KeyRange seen[Rows], all = {0, kAttentionKeys};
  bool any = false;
  for (int r = 0; r < Rows; ++r) {
    seen[r] = within(p.visible[row + r], block);
    any |= seen[r].begin < seen[r].end;
    // What all rows see.
    if (seen[r].begin > all.begin) all.begin = seen[r].begin;
    if (seen[r].end < all.end) all.end = seen[r].end;
  }
  if (!any) return;
  if (all.begin > all.end) all.end = all.begin;

  const size_t ld = padded_head(p.key_size);
  const uint8_t* const keys = static_cast<const uint8_t*>(p.keys) + block.begin * p.key_size * Weights<T>::kSize;
  const uint8_t* const values = static_cast<const uint8_t*>(p.values) + block.begin * p.value_size * Weights<T>::kSize;
  float* const scores = p.scores + row * kAttentionKeys;
  float* const sums = p.state.values + row * p.state.ld;
  dot_rows<T, Rows>(p.queries + row * ld, ld, keys, p.key_size, block.end - block.begin, scores);
  for (int r = 0; r < Rows; ++r) {
    if (seen[r].begin == seen[r].end) continue;
    float* const own = scores + r * kAttentionKeys;
    scale_row(own, kAttentionKeys, p.scale);
    if (p.softcap > 0.0f)
      for (size_t j = 0; j < kAttentionKeys; j += Simd::kWidth) {
        const Simd::F cap = Simd::set1(p.softcap);
        Simd::store(own + j, Simd::mul(cap, tanh_f32(Simd::div(Simd::load(own + j), cap))));
      }
    mask_scores(p, row + r, block.begin, seen[r], own);
    weigh_scores(p.state, row + r, own);
  }
  // A weight of 0 would still let a NaN through: a row reads the values that it sees and no others.
  add_values<T, Rows>(scores, values, p.value_size, all, sums, p.state.ld);
  for (int r = 0; r < Rows; ++r) {
    const float* const own = scores + r * kAttentionKeys;
    float* const sum = sums + r * p.state.ld;
    const size_t before = seen[r].end < all.begin ? seen[r].end : all.begin;
    const size_t after = seen[r].begin > all.end ? seen[r].begin : all.end;
    add_values<T, 1>(own, values, p.value_size, {seen[r].begin, before}, sum, p.state.ld);
    add_values<T, 1>(own, values, p.value_size, {after, seen[r].end}, sum, p.state.ld);
  }
}

template <DataType T>
void attend_rows(const AttendArgs& p) {
  for (size_t begin = p.range.begin; begin < p.range.end; begin += kAttentionKeys) {
    const size_t left = p.range.end - begin;
    const KeyRange block = {begin, begin + (left < kAttentionKeys ? left : kAttentionKeys)};
    size_t row = 0;
    for (; row + kQueryTile <= p.rows; row += kQueryTile) attend_tile<T, kQueryTile>(p, row, block);
    switch (p.rows - row) {
      case 3: attend_tile<T, 3>(p, row, block); break;
      case 2: attend_tile<T, 2>(p, row, block); break;
      case 1: attend_tile<T, 1>(p, row, block); break;
    }
  }
}

void attend(const AttendArgs& p) {
  switch (p.type) {
    case DataType::kF32: return attend_rows<DataType::kF32>(p);
    case DataType::kF16: return attend_rows<DataType::kF16>(p);
    case DataType::kBF16: return attend_rows<DataType::kBF16>(p);
  }
}
