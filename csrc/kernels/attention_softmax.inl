// The scores of a block of keys, [key, lanes], become weights e^(score - most), and the state of each row is carried on.
// Included inside an ISA namespace, after attention_lanes.inl.

// e^x of x <= 0 within 2 units u, relative; 0 below the smallest normal number, NaN stays.
inline Simd::F exp_of_nonpositive(Simd::F x) {
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  // ln 2 in two parts: the first has few bits, so n times it is exact.
  Simd::F r = Simd::fma(n, Simd::set1(-0.693359375f), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  // The best polynomial of this form for |r| <= ln 2 / 2 errs by under u / 10.
  const float best[] = {0.001381461f, 0.008368711f, 0.04166839f, 0.16666521f, 0.49999994f, 1.0f, 1.0f};
  Simd::F p = Simd::set1(best[0]);
  for (size_t i = 1; i < sizeof best / sizeof best[0]; ++i) p = Simd::fma(p, r, Simd::set1(best[i]));
  return Simd::where_greater(Simd::set1(-87.33655f), x, Simd::zero(), Simd::times_pow2(p, n));
}

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

// Where rows leave half of a vector empty, it holds the scores of several keys.
inline size_t keys_of_vector(const AttendScratch& s) { return s.lanes < Simd::kWidth ? Simd::kWidth / s.lanes : 1; }

// Scores that need more than a factor: soft-capped, and with the bias of the keys that a row sees.
inline void cap_and_bias(const AttendArgs& p, const AttendScratch& s, const KeyRange* seen, size_t first, size_t count) {
  const size_t all = rounded_up(count * s.lanes, Simd::kWidth);
  const Simd::F scale = Simd::set1(p.scale), cap = Simd::set1(p.softcap);
  for (size_t i = 0; i < all; i += Simd::kWidth) {
    Simd::F x = Simd::mul(Simd::load(s.scores + i), scale);
    if (p.softcap > 0.0f) x = Simd::mul(cap, tanh_f32(Simd::div(x, cap)));
    Simd::store(s.scores + i, x);
  }
  if (!p.bias) return;
  for (size_t r = 0; r < p.rows; ++r) {
    const KeyRange keys = seen[r];
    if (keys.begin == keys.end) continue;
    const uint8_t* const from = static_cast<const uint8_t*>(p.bias[r]) + (first + keys.begin) * size_of(p.bias_type);
    widen(from, p.bias_type, keys.end - keys.begin, 1.0f, s.bias + keys.begin);
    for (size_t k = keys.begin; k < keys.end; ++k) s.scores[k * s.lanes + r] += s.bias[k];
  }
}

// What lies over each other in a vector of several keys, combined for each row, in all its places.
template <class Combine>
inline Simd::F combined_keys(const AttendScratch& s, Simd::F x, const Combine& combine) {
  if (s.lanes >= Simd::kWidth) return x;
  float lanes[Simd::kWidth];
  Simd::store(lanes, x);
  for (size_t r = 0; r < s.lanes; ++r) {
    float all = lanes[r];
    for (size_t i = r + s.lanes; i < Simd::kWidth; i += s.lanes) all = combine(all, lanes[i]);
    for (size_t i = r; i < Simd::kWidth; i += s.lanes) lanes[i] = all;
  }
  return Simd::load(lanes);
}

// For one vector of rows, over all keys of the block. `Masked`: some row does not see some key.
template <bool Masked>
inline void weigh_column(const AttendScratch& s, size_t row, size_t count, float factor, Ahead& ahead) {
  const size_t of_vector = keys_of_vector(s), step = s.lanes * of_vector, vectors = (count + of_vector - 1) / of_vector;
  float* const scores = s.scores + row;
  const auto rows_of = [&](const float* from) {
    float lanes[Simd::kWidth];
    if (of_vector == 1) return Simd::load(from + row);
    for (size_t i = 0; i < Simd::kWidth; ++i) lanes[i] = from[i % s.lanes];
    return Simd::load(lanes);
  };
  Simd::F begin, end, key;
  if constexpr (Masked) {
    float own[Simd::kWidth];
    for (size_t i = 0; i < Simd::kWidth; ++i) own[i] = static_cast<float>(i / s.lanes);
    key = of_vector == 1 ? Simd::zero() : Simd::load(own);
    // begin - 1 < key < end
    begin = Simd::sub(rows_of(s.begin), Simd::set1(1.0f)), end = rows_of(s.end);
  }
  const Simd::F scale = Simd::set1(factor), before = rows_of(s.most);
  Simd::F most = before;
  for (size_t v = 0; v < vectors; ++v) {
    Simd::F x = Simd::mul(Simd::load(scores + v * step), scale);
    if constexpr (Masked) {
      const Simd::F nothing = Simd::set1(-kInf);
      x = Simd::where_greater(key, begin, Simd::where_greater(end, key, x, nothing), nothing);
      key = Simd::add(key, Simd::set1(static_cast<float>(of_vector)));
    }
    Simd::store(scores + v * step, x);
    most = Simd::max(x, most);
  }
  most = combined_keys(s, most, [](float a, float b) { return a < b ? b : a; });
  // Where everything is masked so far, -Inf less -Inf would be NaN.
  const Simd::F shift = Simd::where_greater(most, Simd::set1(-kInf), most, Simd::zero());
  Simd::F sum = Simd::zero();
  Lines lines = row == 0 ? ahead.take(vectors) : ahead.nothing();
  for (size_t v = 0; v < vectors; ++v) {
    lines.fetch<1>();
    const Simd::F e = exp_of_nonpositive(Simd::sub(Simd::load(scores + v * step), shift));
    Simd::store(scores + v * step, e);
    sum = Simd::add(sum, e);
  }
  sum = combined_keys(s, sum, [](float a, float b) { return a + b; });
  const Simd::F rescale = exp_of_nonpositive(Simd::sub(before, shift));
  const size_t n = of_vector == 1 ? Simd::kWidth : s.lanes;
  store_head_or_all(s.rescale + row, rescale, n);
  store_head_or_all(s.sum + row, Simd::fma(rows_of(s.sum), rescale, sum), n);
  store_head_or_all(s.most + row, most, n);
}

// Which keys of the block each row sees, in lanes. `seen` null: all `count`.
inline void set_bounds(const AttendArgs& p, const AttendScratch& s, const KeyRange* seen, size_t count) {
  for (size_t r = 0; r < s.lanes; ++r) {
    const KeyRange own = r >= p.rows ? KeyRange{0, 0} : seen ? seen[r] : KeyRange{0, count};
    s.begin[r] = static_cast<float>(own.begin);
    s.end[r] = static_cast<float>(own.end);
  }
}

// `seen`: of each row, in the block; null: all rows see all of it, and there is no bias.
inline void weigh_block(const AttendArgs& p, const AttendScratch& s, const KeyRange* seen, size_t first, size_t count,
                        Ahead& ahead) {
  float factor = p.scale;
  if (p.bias || p.softcap > 0.0f) {
    cap_and_bias(p, s, seen, first, count);
    factor = 1.0f;
  }
  // A last vector that is not full holds something in the place of absent keys.
  const bool masked = seen || count % keys_of_vector(s);
  if (masked) set_bounds(p, s, seen, count);
  for (size_t row = 0; row < s.lanes; row += Simd::kWidth)
    masked ? weigh_column<true>(s, row, count, factor, ahead) : weigh_column<false>(s, row, count, factor, ahead);
}
