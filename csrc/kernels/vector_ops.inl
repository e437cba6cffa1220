// Activation, weighted sum: what an instruction level has beside matmuls, attention and the router. Included inside an ISA
// namespace, after vector_basics.inl.

// x · sigmoid(y)
inline Simd::F times_sigmoid(Simd::F x, Simd::F y) {
  const Simd::F one = Simd::set1(1.0f);
  return Simd::div(x, Simd::add(one, exp_f32(Simd::sub(Simd::zero(), y))));
}

inline Simd::F gelu_erf(Simd::F x) {
  float lanes[Simd::kWidth];
  Simd::store(lanes, x);
  for (float& v : lanes) v = 0.5f * v * (1.0f + __builtin_erff(v * 0.70710678f));
  return Simd::load(lanes);
}

inline Simd::F gelu_tanh(Simd::F x) {
  // x/2 · (1 + tanh y) = x · sigmoid(2y)
  const Simd::F cubic = Simd::fma(Simd::mul(x, x), Simd::set1(0.044715f), Simd::set1(1.0f));
  return times_sigmoid(x, Simd::mul(Simd::mul(x, cubic), Simd::set1(1.59576912f)));
}

template <Activation A>
inline Simd::F activated(Simd::F g, const ActivationSpec& spec) {
  if constexpr (A == Activation::kSilu) return times_sigmoid(g, g);
  if constexpr (A == Activation::kGelu) return gelu_erf(g);
  if constexpr (A == Activation::kGeluTanh) return gelu_tanh(g);
  if constexpr (A == Activation::kRelu) return Simd::max(Simd::zero(), g);
  if constexpr (A == Activation::kIdentity) return g;
  if constexpr (A == Activation::kSwigluOai) {
    const Simd::F x = Simd::min(Simd::set1(spec.limit), g);
    return times_sigmoid(x, Simd::mul(x, Simd::set1(spec.alpha)));
  }
}

template <Activation A>
inline Simd::F gated(Simd::F g, Simd::F u, const ActivationSpec& spec) {
  if constexpr (A == Activation::kSwigluOai) {
    const Simd::F limited = Simd::max(Simd::set1(-spec.limit), Simd::min(Simd::set1(spec.limit), u));
    u = Simd::add(limited, Simd::set1(spec.beta));
  }
  return Simd::mul(activated<A>(g, spec), u);
}

inline Simd::F load_strided(const float* p, size_t step, size_t n) {
  if (step == 1) return load_head_or_all(p, n);
  float lanes[Simd::kWidth] = {};
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i * step];
  return Simd::load(lanes);
}

template <Activation A>
void activate_rows(const ActivateArgs& p) {
  for (size_t r = 0; r < p.rows; ++r)
    for (size_t i = 0; i < p.n; i += Simd::kWidth) {
      const size_t n = p.n - i < Simd::kWidth ? p.n - i : Simd::kWidth;
      Simd::F g = load_strided(p.gate + r * p.ld + i * p.step, p.step, n);
      if (p.gate_bias) g = Simd::add(g, load_head_or_all(p.gate_bias + i, n));
      Simd::F h;
      if (p.up) {
        Simd::F u = load_strided(p.up + r * p.ld + i * p.step, p.step, n);
        if (p.up_bias) u = Simd::add(u, load_head_or_all(p.up_bias + i, n));
        h = gated<A>(g, u, p.activation);
      } else {
        h = activated<A>(g, p.activation);
      }
      store_head_or_all(p.h + r * p.ldh + i, h, n);
    }
}

void activate(const ActivateArgs& p) {
  switch (p.activation.kind) {
    case Activation::kSilu: return activate_rows<Activation::kSilu>(p);
    case Activation::kGelu: return activate_rows<Activation::kGelu>(p);
    case Activation::kGeluTanh: return activate_rows<Activation::kGeluTanh>(p);
    case Activation::kRelu: return activate_rows<Activation::kRelu>(p);
    case Activation::kIdentity: return activate_rows<Activation::kIdentity>(p);
    case Activation::kSwigluOai: return activate_rows<Activation::kSwigluOai>(p);
  }
}

inline Simd::F sum_of_chunks(const float* p, size_t chunks, size_t distance, size_t n) {
  Simd::F sum = load_head_or_all(p, n);
  for (size_t c = 1; c < chunks; ++c) sum = Simd::add(sum, load_head_or_all(p + c * distance, n));
  return sum;
}

inline void store_as(void* out, DataType type, size_t i, Simd::F x, size_t n) {
  uint8_t* p = static_cast<uint8_t*>(out) + i * size_of(type);
  if (type == DataType::kF32) store_head_or_all(reinterpret_cast<float*>(p), x, n);
  else if (type == DataType::kF16) Simd::store_f16_head(p, x, n);
  else Simd::store_bf16_head(p, x, n);
}

void combine(const CombineArgs& p) {
  for (size_t i = 0; i < p.n; i += Simd::kWidth) {
    const size_t n = p.n - i < Simd::kWidth ? p.n - i : Simd::kWidth;
    Simd::F y = Simd::zero();
    for (size_t j = 0; j < p.count; ++j) {
      const CombineTerm& term = p.terms[j];
      Simd::F x = sum_of_chunks(term.row + i, term.chunks, term.chunk_distance, n);
      if (term.bias) x = Simd::add(x, load_head_or_all(term.bias + i, n));
      y = Simd::fma(Simd::set1(term.weight), x, y);
    }
    store_as(p.out, p.out_type, i, y, n);
  }
}

void sum_chunks(const float* parts, size_t chunks, size_t distance, size_t n, float* sum) {
  for (size_t i = 0; i < n; i += Simd::kWidth) {
    const size_t count = n - i < Simd::kWidth ? n - i : Simd::kWidth;
    store_head_or_all(sum + i, sum_of_chunks(parts + i, chunks, distance, count), count);
  }
}

double multiply_adds(size_t rounds) {
  constexpr int kChains = 12;  // latency 4 × 2 a cycle = 8 in flight suffice
  Simd::F acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = Simd::set1(static_cast<float>(i));
  const Simd::F a = Simd::set1(0.999f), b = Simd::set1(0.001f);
  for (size_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) acc[i] = Simd::fma(acc[i], a, b);
  Simd::F sum = Simd::zero();
  for (int i = 0; i < kChains; ++i) sum = Simd::add(sum, acc[i]);
  volatile float sink = Simd::sum(sum);
  (void)sink;
  return 2.0 * kChains * Simd::kWidth * static_cast<double>(rounds);
}
