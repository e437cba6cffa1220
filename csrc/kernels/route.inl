// Routing: scores of a token's experts, the choice of k, their weights. Included inside an ISA namespace, after
// vector_ops.inl.
//
// A row of E elements lies in scratch with whole vectors' room: lanes past its end hold -Inf, which no choice reaches while
// there are others, and whose exponential is 0.

inline size_t whole_vectors(size_t n) { return (n + Simd::kWidth - 1) / Simd::kWidth * Simd::kWidth; }

template <DataType T>
void load_logits(const uint8_t* from, size_t n, float* to) {
  size_t i = 0;
  for (; i + Simd::kWidth <= n; i += Simd::kWidth) Simd::store(to + i, Weights<T>::load(from + i * Weights<T>::kSize));
  if (i < n) {
    const Simd::F head = Weights<T>::load_head(from + i * Weights<T>::kSize, n - i);
    Simd::store(to + i, Simd::first(head, n - i, Simd::set1(-kInf)));
  }
}

inline void load_logits(const RouteArgs& p, size_t token, float* to) {
  const uint8_t* from = static_cast<const uint8_t*>(p.logits) + token * p.experts * size_of(p.type);
  switch (p.type) {
    case DataType::kF32: return load_logits<DataType::kF32>(from, p.experts, to);
    case DataType::kF16: return load_logits<DataType::kF16>(from, p.experts, to);
    case DataType::kBF16: return load_logits<DataType::kBF16>(from, p.experts, to);
  }
}

// Of a row with NaN it may be any element: their exponentials are NaN whatever is subtracted.
inline float largest_of(const float* x, size_t padded) {
  Simd::F most = Simd::load(x);
  for (size_t i = Simd::kWidth; i < padded; i += Simd::kWidth) most = Simd::max(Simd::load(x + i), most);
  return Simd::largest(most);
}

inline void softmax_row(float* x, size_t padded) {
  const Simd::F most = Simd::set1(largest_of(x, padded));
  Simd::F sum = Simd::zero();
  for (size_t i = 0; i < padded; i += Simd::kWidth) {
    const Simd::F e = exp_f32(Simd::sub(Simd::load(x + i), most));
    sum = Simd::add(sum, e);
    Simd::store(x + i, e);
  }
  const Simd::F total = Simd::set1(Simd::sum(sum));
  for (size_t i = 0; i < padded; i += Simd::kWidth) Simd::store(x + i, Simd::div(Simd::load(x + i), total));
}

inline void sigmoid_row(float* x, size_t padded) {
  const Simd::F one = Simd::set1(1.0f);
  for (size_t i = 0; i < padded; i += Simd::kWidth) Simd::store(x + i, times_sigmoid(one, Simd::load(x + i)));
}

// What selects: the score plus the bias; NaN counts as +Inf, so that it is seen in the weights.
inline void selection_row(const float* scores, const float* bias, size_t n, float* to) {
  const Simd::F inf = Simd::set1(kInf);
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    const size_t count = n - i < Simd::kWidth ? n - i : Simd::kWidth;
    Simd::F x = Simd::load(scores + i);
    if (bias) x = Simd::add(x, load_head_or_all(bias + i, count));
    Simd::store(to + i, Simd::first(Simd::min(x, inf), count, Simd::set1(-kInf)));
  }
}

// How many of the n values come before value j: the larger ones, and equal ones of lower index. Lanes past the end are -Inf.
inline size_t rank_of(const float* x, size_t n, size_t j) {
  const Simd::F own = Simd::set1(x[j]);
  size_t rank = 0;
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    const Simd::F other = Simd::load(x + i);
    uint32_t before = Simd::greater(other, own);
    if (i <= j) {
      const uint32_t equal = Simd::equal(other, own);
      before |= j - i < Simd::kWidth ? equal & ((1u << (j - i)) - 1) : equal;
    }
    rank += static_cast<size_t>(__builtin_popcount(before));
  }
  return rank;
}

// The k largest of n, one after the other; destroys x, where NaN marks what was taken. Equal ones: the lower index first.
inline void select_one_by_one(float* x, size_t n, size_t k, int64_t* ids) {
  for (size_t j = 0; j < k; ++j) {
    Simd::F most = Simd::set1(-kInf);
    for (size_t i = 0; i < n; i += Simd::kWidth) most = Simd::max(Simd::load(x + i), most);
    const Simd::F best = Simd::set1(Simd::largest(most));
    size_t at = 0;
    uint32_t equal = 0;
    while (!(equal = Simd::equal(Simd::load(x + at), best))) at += Simd::kWidth;
    at += static_cast<size_t>(__builtin_ctz(equal));
    ids[j] = static_cast<int64_t>(at);
    x[at] = __builtin_nanf("");
  }
}

// Candidates that are ranked against each other; where there are more, picking one by one is cheaper.
constexpr size_t kMostCandidates = 64;
// A row is read as lines of this many elements at most, whole vectors, below each other.
constexpr size_t kMostColumns = 32;

// A value that at least k of the row reach: the k-th largest of the columns' largest.
inline float reached_by(const float* x, size_t n, size_t k) {
  // Twice k where there is room: more columns than are needed bring the bound closer to the k-th largest of all.
  const size_t width = whole_vectors(2 * k <= kMostColumns ? 2 * k : kMostColumns);
  float columns[kMostColumns];
  for (size_t v = 0; v < width; v += Simd::kWidth) {
    Simd::F most = Simd::set1(-kInf);
    for (size_t i = v; i < n; i += width) most = Simd::max(Simd::load(x + i), most);
    Simd::store(columns + v, most);
  }
  for (size_t j = 0;; ++j)
    if (rank_of(columns, width, j) == k - 1) return columns[j];
}

// Bit i: whether x[i] >= bound; n is at most 64.
inline uint64_t reaching(const float* x, size_t n, Simd::F bound) {
  uint64_t bits = 0;
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    const Simd::F v = Simd::load(x + i);
    bits |= uint64_t{Simd::greater(v, bound) | Simd::equal(v, bound)} << i;
  }
  return bits;
}

// Where the k largest of n values are, in descending order, the lower index first where they are equal. k is at most n.
// Destroys x.
//
// A bound that k values reach leaves few candidates, and each finds its place by counting those before it: work that does
// not wait for other work, as picking the largest k times would.
inline void select_largest(float* x, size_t n, size_t k, int64_t* ids) {
  if (k > kMostColumns || n <= 2 * Simd::kWidth) return select_one_by_one(x, n, k, ids);
  const Simd::F bound = Simd::set1(reached_by(x, n, k));
  uint32_t places[kMostCandidates];
  float values[kMostCandidates + Simd::kWidth];
  size_t count = 0;
  for (size_t block = 0; block < n; block += 64) {
    uint64_t enough = reaching(x + block, n - block < 64 ? n - block : 64, bound);
    if (count + static_cast<size_t>(__builtin_popcountll(enough)) > kMostCandidates) return select_one_by_one(x, n, k, ids);
    for (; enough; enough &= enough - 1) {
      places[count] = static_cast<uint32_t>(block) + static_cast<uint32_t>(__builtin_ctzll(enough));
      values[count] = x[places[count]];
      ++count;
    }
  }
  Simd::store(values + count, Simd::set1(-kInf));
  for (size_t c = 0; c < count; ++c) {
    const size_t rank = rank_of(values, count, c);
    if (rank < k) ids[rank] = static_cast<int64_t>(places[c]);
  }
}

// The largest of a group's n values, or the sum of its two largest.
inline float group_worth(const float* x, size_t n, GroupScore how) {
  const Simd::F nothing = Simd::set1(-kInf);
  Simd::F most = nothing, second = nothing;  // of each lane
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    Simd::F v = Simd::load(x + i);
    if (n - i < Simd::kWidth) v = Simd::first(v, n - i, nothing);
    second = Simd::max(second, Simd::min(most, v));
    most = Simd::max(most, v);
  }
  const float best = Simd::largest(most);
  if (how == GroupScore::kMax) return best;
  const Simd::F all = Simd::set1(best);
  const uint32_t lanes = Simd::equal(most, all);
  if (lanes & (lanes - 1)) return best + best;
  return best + Simd::largest(Simd::where_greater(all, most, most, second));
}

// Experts outside the best groups get the masked score.
inline void mask_groups(const RoutingRule& rule, size_t experts, float* selection, float* worth) {
  const size_t size = experts / rule.num_groups;
  for (size_t g = 0; g < rule.num_groups; ++g) worth[g] = group_worth(selection + g * size, size, rule.group_score);
  selection_row(worth, nullptr, rule.num_groups, worth);  // Inf - Inf is NaN, which counts as Inf here, too
  for (size_t g = 0; g < rule.num_groups; ++g) {
    if (rank_of(worth, rule.num_groups, g) < rule.top_groups) continue;
    for (size_t i = 0; i < size; i += Simd::kWidth) {
      const size_t count = size - i < Simd::kWidth ? size - i : Simd::kWidth;
      store_head_or_all(selection + g * size + i, Simd::set1(rule.masked_score), count);
    }
  }
}

inline void normalize_row(const RoutingRule& rule, float* w, size_t padded) {
  Simd::F sum = Simd::zero();
  for (size_t i = 0; i < padded; i += Simd::kWidth) sum = Simd::add(sum, Simd::load(w + i));
  float total = Simd::sum(sum);
  if (total < rule.normalize_min) total = rule.normalize_min;
  const Simd::F divisor = Simd::set1(total + rule.normalize_epsilon);
  for (size_t i = 0; i < padded; i += Simd::kWidth) Simd::store(w + i, Simd::div(Simd::load(w + i), divisor));
}

// From the scores of the chosen ones, in w, which has room for whole vectors.
inline void finish_weights(const RoutingRule& rule, float* w, float* weights) {
  const size_t padded = whole_vectors(rule.k);
  // What adds nothing to a sum: 0, also as an exponential.
  const float nothing = rule.weight_function == WeightFunction::kNone ? 0.0f : -kInf;
  for (size_t j = rule.k; j < padded; ++j) w[j] = nothing;
  if (rule.weight_function == WeightFunction::kSoftmax) softmax_row(w, padded);
  if (rule.weight_function == WeightFunction::kSigmoid) sigmoid_row(w, padded);
  if (rule.normalize) normalize_row(rule, w, padded);
  for (size_t j = 0; j < rule.k; ++j) weights[j] = w[j] * rule.scale;
}

// The softmax, over the experts near the chosen one, of the chosen one itself. `left` holds the logits x but for those that
// were chosen before, which are -Inf there.
inline float near_softmax(const float* x, const float* left, size_t padded, float chosen, float threshold) {
  const Simd::F top = Simd::set1(chosen), limit = Simd::set1(threshold);
  Simd::F sum = Simd::zero();
  for (size_t i = 0; i < padded; i += Simd::kWidth) {
    const Simd::F v = Simd::load(x + i);
    const Simd::F magnitude = Simd::max(v, Simd::sub(Simd::zero(), v));
    const Simd::F distance = Simd::div(Simd::sub(top, v), Simd::max(top, magnitude));
    const Simd::F e = exp_f32(Simd::sub(Simd::load(left + i), top));
    sum = Simd::add(sum, Simd::where_greater(distance, limit, Simd::zero(), e));
  }
  return 1.0f / Simd::sum(sum);
}

// Phi-3.5-MoE: the best expert, then the best of the others, each with a softmax of its own.
inline void sparse_mixer(const RoutingRule& rule, const float* x, size_t experts, float* left, int64_t* ids, float* w) {
  const float threshold = 2.0f * rule.jitter;
  selection_row(x, nullptr, experts, left);
  select_one_by_one(left, experts, 2, ids);
  const size_t padded = whole_vectors(experts);
  memcpy(left, x, padded * sizeof(float));
  w[0] = near_softmax(x, left, padded, x[ids[0]], threshold);
  left[ids[0]] = -kInf;
  w[1] = near_softmax(x, left, padded, x[ids[1]], threshold);
}

void route(const RouteArgs& p, const RoutingRule& rule) {
  float* const scores = p.scratch;
  float* const selection = scores + p.experts + kRoutePadding;
  float* const w = selection + p.experts + kRoutePadding;
  const size_t padded = whole_vectors(p.experts);
  for (size_t t = 0; t < p.tokens; ++t) {
    int64_t* const ids = p.ids + t * rule.k;
    load_logits(p, t, scores);
    if (rule.score == Score::kSparseMixer) {
      sparse_mixer(rule, scores, p.experts, selection, ids, w);
    } else {
      if (rule.score == Score::kSoftmax) softmax_row(scores, padded);
      if (rule.score == Score::kSigmoid) sigmoid_row(scores, padded);
      selection_row(scores, p.bias, p.experts, selection);
      if (rule.num_groups > 1) mask_groups(rule, p.experts, selection, w);
      select_largest(selection, p.experts, rule.k, ids);
      for (size_t j = 0; j < rule.k; ++j) w[j] = scores[ids[j]];
    }
    finish_weights(rule, w, p.weights + t * rule.k);
  }
}
