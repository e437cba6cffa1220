#include "matmul_case.h"

#include <cmath>
#include <cstring>

#include "bounds.h"
#include "crash_note.h"
#include "elements.h"

namespace ort_hina::native_tests {
namespace {

using kernels::kBlockTokens;
using kernels::MatmulArgs;
using kernels::MatmulKernel;
using kernels::padded_inputs;

size_t leading(const MatmulKernel& kernel, const MatmulShape& s) {
  return (kernel.activations == DataType::kF32 ? s.k : padded_inputs(s.k)) + s.lda_pad;
}

// Each row of an operand has its own power of two.
float row_scale(Random& random, int center) {
  return std::ldexp(1.0f, center + static_cast<int>(random.between(0, 16)) - 8);
}

}  // namespace

std::string MatmulShape::text() const {
  std::string s = "m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k);
  s += " pads " + std::to_string(lda_pad) + "," + std::to_string(ldw_pad) + "," + std::to_string(ldc_pad);
  s += " shifts " + std::to_string(w_shift) + "," + std::to_string(float_shift);
  return s + (side == Side::kEnd ? " at end" : " at start") + (c_lanes ? " c in lanes" : "") + (tiny ? " tiny" : "");
}

MatmulShape random_layout(Random& random, const MatmulKernel& kernel, size_t m, size_t n, size_t k) {
  MatmulShape s{m, n, k};
  const bool blocks = kernel.activations == DataType::kBF16;
  s.lda_pad = random.pick<size_t>(blocks ? std::vector<size_t>{0, 32, 96} : std::vector<size_t>{0, 1, 7});
  s.ldw_pad = random.pick<size_t>({0, 1, 5, 64});
  s.ldc_pad = random.pick<size_t>({0, 1, 16});
  s.w_shift = random.between(0, 7);
  s.float_shift = random.between(0, 3);
  s.side = random.one_in(2) ? Side::kEnd : Side::kStart;
  s.c_lanes = kernel.lanes_result && random.one_in(2);
  s.tiny = random.one_in(12);
  return s;
}

MatmulCase::MatmulCase(Random& random, const MatmulKernel& kernel, const MatmulShape& shape)
    : kernel(kernel),
      shape(shape),
      lda(leading(kernel, shape)),
      ldw((kernel.layout == Layout::kNK ? shape.k : shape.n) + shape.ldw_pad),
      ldc(shape.n + shape.ldc_pad),
      a_(shape.m * shape.k),
      w_(shape.k * shape.n),
      a_memory_(a_elements() * size_of(kernel.activations), shape.side),
      w_memory_(shape.w_shift + (w_index(shape.k - 1, shape.n - 1) + 1) * size_of(kernel.weights), shape.side) {
  fill_activations(random);
  fill_weights(random);
}

bool MatmulCase::in_lanes(size_t block) const {
  if (kernel.activations == DataType::kF32) return false;
  return std::min(kBlockTokens, shape.m - block * kBlockTokens) >= kernel.lanes_from;
}

size_t MatmulCase::a_elements() const {
  if (kernel.activations == DataType::kF32) return shape.float_shift + (shape.m - 1) * lda + shape.k;
  const size_t last = (shape.m - 1) / kBlockTokens, padded = padded_inputs(shape.k);
  if (in_lanes(last)) return last * kBlockTokens * lda + kBlockTokens * padded;
  return (shape.m - 1) * lda + padded;
}

size_t MatmulCase::a_index(size_t token, size_t input) const {
  if (kernel.activations == DataType::kF32) return shape.float_shift + token * lda + input;
  const size_t block = token / kBlockTokens;
  if (!in_lanes(block)) return token * lda + input;
  return block * kBlockTokens * lda + input / 2 * 2 * kBlockTokens + token % kBlockTokens * 2 + input % 2;
}

uint8_t* MatmulCase::a_at(size_t token, size_t input) const {
  return a_memory_.data() + a_index(token, input) * size_of(kernel.activations);
}

size_t MatmulCase::w_index(size_t input, size_t output) const {
  return kernel.layout == Layout::kNK ? output * ldw + input : input * ldw + output;
}

uint8_t* MatmulCase::w_at(size_t input, size_t output) const {
  return w_memory_.data() + shape.w_shift + w_index(input, output) * size_of(kernel.weights);
}

void MatmulCase::fill_activations(Random& random) {
  if (kernel.activations == DataType::kBF16) fill_blocks_with_zeros();
  for (size_t t = 0; t < shape.m; ++t) {
    const float scale = row_scale(random, shape.tiny ? -100 : 0);
    for (size_t i = 0; i < shape.k; ++i) {
      const float x = rounded(random.normal() * scale, kernel.activations);
      store(a_at(t, i), kernel.activations, x);
      a_[t * shape.k + i] = x;
    }
  }
}

// Absent tokens in lanes and inputs beyond k are 0; what lies between rows stays NaN.
void MatmulCase::fill_blocks_with_zeros() {
  const size_t blocks = (shape.m + kBlockTokens - 1) / kBlockTokens;
  for (size_t t = 0; t < blocks * kBlockTokens; ++t) {
    if (t >= shape.m && !in_lanes(t / kBlockTokens)) return;
    for (size_t i = 0; i < padded_inputs(shape.k); ++i) store(a_at(t, i), kernel.activations, 0);
  }
}

void MatmulCase::fill_weights(Random& random) {
  const bool nk = kernel.layout == Layout::kNK;
  const size_t rows = nk ? shape.n : shape.k, columns = nk ? shape.k : shape.n;
  for (size_t r = 0; r < rows; ++r) {
    const float scale = row_scale(random, shape.tiny ? -26 : 0);
    for (size_t j = 0; j < columns; ++j) {
      const size_t input = nk ? j : r, output = nk ? r : j;
      const float x = rounded(random.normal() * scale, kernel.weights);
      store(w_at(input, output), kernel.weights, x);
      w_[input * shape.n + output] = kernel.activations == DataType::kBF16 ? rounded(x, DataType::kBF16) : x;
    }
  }
}

void MatmulCase::poison_activation(size_t token, size_t input, float value) {
  store(a_at(token, input), kernel.activations, value);
}

void MatmulCase::poison_weight(size_t input, size_t output, float value) {
  store(w_at(input, output), kernel.weights, value);
}

MatmulArgs MatmulCase::args() const {
  MatmulArgs args{};
  args.a = a_at(0, 0);
  args.lda = lda;
  args.w = w_at(0, 0);
  args.ldw = ldw;
  args.ldc = ldc;
  args.m = shape.m, args.n = shape.n, args.k = shape.k;
  args.next_w = shape.w_shift % 2 ? nullptr : w_at(shape.k - 1, shape.n - 1);
  args.c_lanes = shape.c_lanes;
  return args;
}

size_t MatmulCase::c_index(size_t token, size_t output) const {
  const size_t block = token / kBlockTokens;
  if (!shape.c_lanes || !in_lanes(block)) return token * ldc + output;
  return block * kBlockTokens * ldc + kBlockTokens * output + token % kBlockTokens;
}

size_t MatmulCase::c_elements() const {
  const size_t last = (shape.m - 1) / kBlockTokens;
  const size_t last_token = shape.c_lanes && in_lanes(last) ? last * kBlockTokens + kBlockTokens - 1 : shape.m - 1;
  return c_index(last_token, shape.n - 1) + 1;
}

std::vector<bool> MatmulCase::writable() const {
  std::vector<bool> mask(c_elements(), false);
  const size_t blocks = (shape.m + kBlockTokens - 1) / kBlockTokens;
  for (size_t t = 0; t < blocks * kBlockTokens; ++t)
    for (size_t n = 0; n < shape.n && (t < shape.m || (shape.c_lanes && in_lanes(t / kBlockTokens))); ++n)
      mask[c_index(t, n)] = true;
  return mask;
}

MatmulOutput::MatmulOutput(const MatmulCase& matmul)
    : matmul_(matmul), memory_((matmul.c_elements() + matmul.shape.float_shift) * sizeof(float), matmul.shape.side) {}

float* MatmulOutput::c() const { return reinterpret_cast<float*>(memory_.data()) + matmul_.shape.float_shift; }

MatmulResult MatmulOutput::result() const {
  constexpr uint32_t kUntouched = 0xFFFFFFFF;
  const MatmulShape& s = matmul_.shape;
  MatmulResult result;
  const std::vector<bool> writable = matmul_.writable();
  for (size_t i = 0; i < writable.size(); ++i)
    if (!writable[i] && bits_of(c()[i]) != kUntouched) result.violation = "wrote c[" + std::to_string(i) + "]";
  for (size_t i = 1; i <= s.float_shift; ++i)
    if (bits_of(c()[-static_cast<ptrdiff_t>(i)]) != kUntouched) result.violation = "wrote before c";
  if (!memory_.surroundings_untouched()) result.violation = "wrote outside of c";
  for (size_t t = 0; t < s.m; ++t)
    for (size_t n = 0; n < s.n; ++n) result.c.push_back(c()[matmul_.c_index(t, n)]);
  return result;
}

std::string run_with_scratch(const MatmulKernel& kernel, MatmulArgs args) {
  const size_t bytes = kernel.scratch_bytes(args.m, args.n);
  const Guarded scratch(bytes, args.n % 2 ? Side::kStart : Side::kEnd, 64);
  args.scratch = bytes ? scratch.data() : nullptr;
  kernel.run(args);
  return scratch.surroundings_untouched() ? "" : "wrote outside of scratch";
}

MatmulResult run(const MatmulCase& matmul) {
  set_crash_note(std::string(matmul.kernel.name) + ": " + matmul.shape.text());
  const MatmulOutput output(matmul);
  MatmulArgs args = matmul.args();
  args.c = output.c();
  const std::string violation = run_with_scratch(matmul.kernel, args);
  MatmulResult result = output.result();
  if (!violation.empty()) result.violation = violation;
  return result;
}

void check(const MatmulCase& matmul, const MatmulResult& result, Outcome& outcome) {
  const MatmulShape& s = matmul.shape;
  ++outcome.cases;
  if (!result.violation.empty()) outcome.fail(result.violation + ": " + s.text());
  std::vector<double> sum(s.n), magnitude(s.n), factors(s.n);
  for (size_t t = 0; t < s.m; ++t) {
    for (auto* v : {&sum, &magnitude, &factors}) std::fill(v->begin(), v->end(), 0.0);
    for (size_t i = 0; i < s.k; ++i) {
      const double a = matmul.activation(t, i);
      for (size_t n = 0; n < s.n; ++n) {
        const double w = matmul.weight(i, n);
        sum[n] += a * w;
        magnitude[n] += std::fabs(a * w);
        factors[n] += std::fabs(a) + std::fabs(w);
      }
    }
    for (size_t n = 0; n < s.n; ++n) {
      const float got = result.c[t * s.n + n];
      const double bound = gamma(s.k) * magnitude[n] + flushed(s.k, factors[n]);
      if (!outcome.within(std::fabs(got - sum[n]), bound))
        outcome.fail("token " + std::to_string(t) + " output " + std::to_string(n) + " is " + std::to_string(got) +
                     ", expected " + std::to_string(sum[n]) + " ± " + std::to_string(bound) + ": " + s.text());
    }
  }
}

}  // namespace ort_hina::native_tests
