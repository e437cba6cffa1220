// Every matmul kernel: against float64, repeated, with NaN and infinity, cut.
#include <cmath>
#include <cstring>

#include "bounds.h"
#include "elements.h"
#include "levels.h"
#include "matmul_case.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::Cut;
using kernels::MatmulArgs;
using kernels::MatmulKernel;

bool same_bits(float x, float y) { return bits_of(x) == bits_of(y); }

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

void check_repeated(Random& random, const MatmulKernel& kernel, const MatmulShape& shape, Outcome& outcome) {
  const MatmulCase matmul(random, kernel, shape);
  const MatmulResult first = run(matmul);
  check(matmul, first, outcome);
  outcome.require(same_bits(first.c, run(matmul).c), "other bits the second time: " + shape.text());
}

// Around the widths of vectors, tiles and blocks; and around the depths of weight panels.
const std::vector<size_t> kTokens = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 70};
const std::vector<size_t> kWidths = {1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 80, 96, 176};
const std::vector<size_t> kDepths = {255, 256, 257, 300, 511, 513, 1030, 2085};

std::vector<MatmulShape> shapes_of(Random& random, const MatmulKernel& kernel) {
  std::vector<MatmulShape> shapes;
  const auto add = [&](size_t m, size_t n, size_t k) { shapes.push_back(random_layout(random, kernel, m, n, k)); };
  for (const size_t m : kTokens)
    for (int i = 0; i < 6; ++i) add(m, random.pick(kWidths), random.pick(kWidths));
  for (const size_t n : kWidths)
    for (const size_t k : kWidths) add(random.between(1, 40), n, k);
  for (const size_t k : kDepths) add(random.between(1, 40), random.between(1, 50), k);
  for (int i = 0; i < 60; ++i) add(random.between(1, 70), random.between(1, 130), random.between(1, 130));
  add(1, 1, 1), add(1, 1, 4099), add(1, 2049, 3), add(70, 1, 1), add(257, 33, 17);
  return shapes;
}

// An output of the token with `poison` (NaN or infinity) at an input of this weight.
bool poisoned_rightly(float got, float poison, double weight) {
  if (std::isnan(poison) || weight == 0) return std::isnan(got);
  return got == std::copysign(INFINITY, poison * weight);
}

void check_poisoned_activation(Random& random, const MatmulKernel& kernel, size_t m, float poison, Outcome& outcome) {
  MatmulShape shape = random_layout(random, kernel, m, 40, 65);
  shape.tiny = false;
  MatmulCase matmul(random, kernel, shape);
  const MatmulResult clean = run(matmul);
  const size_t token = random.between(0, m - 1), input = random.between(0, shape.k - 1);
  matmul.poison_activation(token, input, poison);
  const MatmulResult poisoned = run(matmul);
  ++outcome.cases;
  for (size_t t = 0; t < m; ++t)
    for (size_t n = 0; n < shape.n; ++n) {
      const float got = poisoned.c[t * shape.n + n];
      const bool right = t == token ? poisoned_rightly(got, poison, matmul.weight(input, n))
                                    : same_bits(got, clean.c[t * shape.n + n]);
      outcome.require(right, "token " + std::to_string(t) + " is " + std::to_string(got) + " with " +
                                 std::to_string(poison) + " in token " + std::to_string(token) + ": " + shape.text());
    }
}

void check_poisoned_weight(Random& random, const MatmulKernel& kernel, size_t m, Outcome& outcome) {
  MatmulCase matmul(random, kernel, random_layout(random, kernel, m, 40, 65));
  const MatmulShape& shape = matmul.shape;
  const MatmulResult clean = run(matmul);
  const size_t output = random.between(0, shape.n - 1);
  matmul.poison_weight(random.between(0, shape.k - 1), output, NAN);
  const MatmulResult poisoned = run(matmul);
  ++outcome.cases;
  for (size_t t = 0; t < m; ++t)
    for (size_t n = 0; n < shape.n; ++n) {
      const size_t i = t * shape.n + n;
      const bool right = n == output ? std::isnan(poisoned.c[i]) : same_bits(poisoned.c[i], clean.c[i]);
      outcome.require(right, "output " + std::to_string(n) + " with NaN in a weight of " + std::to_string(output) + ": " +
                                 shape.text());
    }
}

void check_poison(Random& random, const MatmulKernel& kernel, Outcome& outcome) {
  for (const size_t m : {1, 2, 5, 16, 17, 29, 33}) {
    for (const float poison : {NAN, INFINITY, -INFINITY}) check_poisoned_activation(random, kernel, m, poison, outcome);
    check_poisoned_weight(random, kernel, m, outcome);
  }
}

// Cut along N: the same bits as in one piece.
void check_cut_outputs(Random& random, const MatmulKernel& kernel, size_t m, Outcome& outcome) {
  const size_t head = kernel.n_step * random.between(1, 2);
  MatmulShape shape = random_layout(random, kernel, m, head + random.between(1, 70), random.between(1, 100));
  const MatmulCase matmul(random, kernel, shape);
  // A block in rows continues elsewhere than one in lanes.
  const bool lanes = shape.c_lanes;
  if (lanes && kernel.lanes_from > 1) return;
  const MatmulOutput output(matmul);
  MatmulArgs args = matmul.args();
  args.c = output.c();
  args.n = head;
  run_with_scratch(kernel, args);
  const size_t w_step = kernel.layout == Layout::kNK ? args.ldw : 1;
  args.w = static_cast<const uint8_t*>(args.w) + head * w_step * size_of(kernel.weights);
  args.c += head * (lanes ? kernels::kBlockTokens : 1);
  args.n = shape.n - head;
  run_with_scratch(kernel, args);
  ++outcome.cases;
  outcome.require(same_bits(output.result().c, run(matmul).c), "other bits when cut at " + std::to_string(head) + ": " +
                                                                    shape.text());
}

// Cut along K: partial sums of whole chunks.
void check_cut_inputs(Random& random, const MatmulKernel& kernel, size_t m, Outcome& outcome) {
  const size_t head = kernel.k_chunk;
  MatmulShape shape = random_layout(random, kernel, m, random.between(1, 70), head + random.between(1, 70));
  shape.c_lanes = false;
  const MatmulCase matmul(random, kernel, shape);
  const MatmulOutput first(matmul), second(matmul);
  MatmulArgs args = matmul.args();
  args.c = first.c();
  args.k = head;
  run_with_scratch(kernel, args);
  // In lanes a pair of inputs is 32 elements; k_chunk is even.
  const size_t a_step = matmul.in_lanes(0) ? kernels::kBlockTokens : 1;
  args.a = static_cast<const uint8_t*>(args.a) + head * a_step * size_of(kernel.activations);
  args.w = static_cast<const uint8_t*>(args.w) + head * args.ldw * size_of(kernel.weights);
  args.c = second.c();
  args.k = shape.k - head;
  run_with_scratch(kernel, args);
  MatmulResult sum = first.result();
  const MatmulResult rest = second.result();
  for (size_t i = 0; i < sum.c.size(); ++i) sum.c[i] += rest.c[i];
  check(matmul, sum, outcome);
}

void check_cut(Random& random, const MatmulKernel& kernel, Outcome& outcome) {
  for (const size_t m : {1, 2, 5, 16, 17, 33})
    kernel.cut == Cut::kN ? check_cut_outputs(random, kernel, m, outcome) : check_cut_inputs(random, kernel, m, outcome);
}

}  // namespace

void test_matmul(const MatmulKernel& kernel, Random& random, Outcome& outcome) {
  for (const MatmulShape& shape : shapes_of(random, kernel)) check_repeated(random, kernel, shape, outcome);
  check_poison(random, kernel, outcome);
  check_cut(random, kernel, outcome);
}

void add_matmul_tests(Isa level, Tests& tests) {
  for (const MatmulKernel* kernel : rows_of(level))
    tests.push_back({name_of(level), kernel->name, [kernel](Random& random, Outcome& outcome) {
                       test_matmul(*kernel, random, outcome);
                     }});
}

}  // namespace ort_hina::native_tests
