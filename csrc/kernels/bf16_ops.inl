// Activations into blocks of bf16, and the yardstick of bf16 products. Included inside an ISA namespace with AVX512-BF16, after
// vector_ops.inl.

// 32 inputs of one token, the first n of them (n <= 32), scaled and rounded.
template <DataType T>
inline Half load_inputs(const uint8_t* p, size_t n, const float* scale) {
  if (T == DataType::kBF16 && !scale)
    return n == 32 ? HalfWeights<T>::load(p) : HalfWeights<T>::load_head(p, n);
  constexpr size_t kW = Simd::kWidth;
  const size_t low = n < kW ? n : kW, high = n - low;
  Simd::F x = low == kW ? Weights<T>::load(p) : Weights<T>::load_head(p, low);
  const uint8_t* rest = p + kW * size_of(T);
  Simd::F y = high == kW ? Weights<T>::load(rest) : high ? Weights<T>::load_head(rest, high) : Simd::zero();
  if (scale) {
    x = Simd::mul(x, Simd::set1(*scale));
    y = Simd::mul(y, Simd::set1(*scale));
  }
  return rounded(x, y);
}

template <DataType T>
void pack_as(const PackArgs& p) {
  for (size_t i = 0; i < p.padded; i += 32) {
    const size_t n = i >= p.n ? 0 : p.n - i < 32 ? p.n - i : 32;
    const size_t padded = p.padded - i < 32 ? p.padded - i : 32;
    Simd::F square[16];
    for (size_t t = 0; t < 16; ++t) {
      if (t >= p.count || !n) {
        square[t] = Simd::zero();
        continue;
      }
      const uint8_t* row = static_cast<const uint8_t*>(p.rows[t]) + i * size_of(T);
      square[t] = _mm512_castsi512_ps(bits_of(load_inputs<T>(row, n, p.scales ? p.scales + t : nullptr)));
    }
    if (p.lanes) {
      Simd::transpose(square);
      for (size_t j = 0; j < padded / 2; ++j) Simd::store(reinterpret_cast<float*>(p.to + (i / 2 + j) * 32), square[j]);
    } else {
      for (size_t t = 0; t < p.count; ++t)
        _mm512_mask_storeu_epi32(p.to + t * p.ld + i, (__mmask16)((1u << padded / 2) - 1), _mm512_castps_si512(square[t]));
    }
  }
}

void pack(const PackArgs& p) {
  switch (p.type) {
    case DataType::kF32: return pack_as<DataType::kF32>(p);
    case DataType::kF16: return pack_as<DataType::kF16>(p);
    case DataType::kBF16: return pack_as<DataType::kBF16>(p);
  }
}

template <Activation A>
inline Simd::F unit_lanes(const ActivateLanesArgs& p, size_t i) {
  Simd::F g = Simd::load(p.gate + 16 * i * p.step);
  if (p.gate_bias) g = Simd::add(g, Simd::set1(p.gate_bias[i]));
  if (!p.up) return activated<A>(g, p.activation);
  Simd::F u = Simd::load(p.up + 16 * i * p.step);
  if (p.up_bias) u = Simd::add(u, Simd::set1(p.up_bias[i]));
  return gated<A>(g, u, p.activation);
}

template <Activation A>
void activate_blocks(const ActivateLanesArgs& p) {
  const __mmask16 present = Simd::head(p.tokens);
  for (size_t i = 0; i < p.padded; i += 2) {
    const Simd::F even = i < p.n ? unit_lanes<A>(p, i) : Simd::zero();
    const Simd::F odd = i + 1 < p.n ? unit_lanes<A>(p, i + 1) : Simd::zero();
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd)), 16);
    _mm512_store_si512(p.h + i * 16, _mm512_maskz_or_epi32(present, low, high));
  }
}

void activate_lanes(const ActivateLanesArgs& p) {
  switch (p.activation.kind) {
    case Activation::kSilu: return activate_blocks<Activation::kSilu>(p);
    case Activation::kGelu: return activate_blocks<Activation::kGelu>(p);
    case Activation::kGeluTanh: return activate_blocks<Activation::kGeluTanh>(p);
    case Activation::kRelu: return activate_blocks<Activation::kRelu>(p);
    case Activation::kIdentity: return activate_blocks<Activation::kIdentity>(p);
    case Activation::kSwigluOai: return activate_blocks<Activation::kSwigluOai>(p);
  }
}

double bf16_multiply_adds(size_t rounds) {
  constexpr int kChains = 16;
  Simd::F acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = Simd::set1(static_cast<float>(i));
  const Half x = rounded(Simd::set1(0.999f), Simd::set1(0.001f)), y = rounded(Simd::set1(0.001f), Simd::set1(0.999f));
  for (size_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kChains; ++i) acc[i] = multiply_pairs(x, y, acc[i]);
  Simd::F sum = Simd::zero();
  for (int i = 0; i < kChains; ++i) sum = Simd::add(sum, acc[i]);
  volatile float sink = Simd::sum(sum);
  (void)sink;
  return 2.0 * 2 * kChains * Simd::kWidth * static_cast<double>(rounds);
}
