// Weighted sums, widening, sums of chunks.
#include <cmath>
#include <string>

#include "bounds.h"
#include "elements.h"
#include "guarded.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

const std::vector<DataType> kTypes = {DataType::kF32, DataType::kF16, DataType::kBF16};

Guarded random_floats(Random& random, size_t n, Side side) {
  Guarded memory(n * 4, side);
  for (size_t i = 0; i < n; ++i) store(memory.data() + 4 * i, DataType::kF32, random.normal());
  return memory;
}

const float* floats(const Guarded& g) { return reinterpret_cast<const float*>(g.data()); }

Side random_side(Random& random) { return random.one_in(2) ? Side::kEnd : Side::kStart; }

// n numbers within their bounds, and nothing else written.
void check_numbers(const Guarded& out, DataType type, const std::vector<double>& sum, const std::vector<double>& bound,
                   const std::string& what, Outcome& outcome) {
  ++outcome.cases;
  outcome.require(out.surroundings_untouched(), "wrote outside: " + what);
  for (size_t i = 0; i < sum.size(); ++i) {
    const double got = load(out.data() + i * size_of(type), type);
    if (!outcome.within(std::fabs(got - sum[i]), bound[i] + rounding(std::fabs(sum[i]) + bound[i], type)))
      outcome.fail(std::to_string(got) + " at " + std::to_string(i) + ", expected " + std::to_string(sum[i]) + ": " + what);
  }
}

// Random terms, and what they sum up to.
struct Terms {
  Terms(Random& random, size_t n, size_t count, Side side) : sum(n, 0.0), magnitude(n, 0.0) {
    for (size_t j = 0; j < count; ++j) add(random, n, side);
  }

  void add(Random& random, size_t n, Side side) {
    kernels::CombineTerm term{};
    term.chunks = static_cast<uint32_t>(random.between(1, 4));
    term.chunk_distance = n + random.between(0, 5);
    term.weight = random.normal();
    term.row = floats(kept(random_floats(random, (term.chunks - 1) * term.chunk_distance + n, side)));
    if (random.one_in(2)) term.bias = floats(kept(random_floats(random, n, side)));
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < term.chunks; ++c) count_in(i, term.weight, term.row[c * term.chunk_distance + i]);
      if (term.bias) count_in(i, term.weight, term.bias[i]);
    }
    most_chunks = std::max<size_t>(most_chunks, term.chunks);
    terms.push_back(term);
  }

  const Guarded& kept(Guarded&& g) {
    memory.push_back(std::move(g));
    return memory.back();
  }

  void count_in(size_t i, double weight, double value) {
    sum[i] += weight * value;
    magnitude[i] += std::fabs(weight * value);
  }

  std::vector<kernels::CombineTerm> terms;
  std::vector<Guarded> memory;
  std::vector<double> sum, magnitude;
  size_t most_chunks = 0;
};

void check_combine(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const size_t n = random.between(1, 80), count = random.between(0, 9);
  const DataType type = random.pick(kTypes);
  const Side side = random_side(random);
  const Terms t(random, n, count, side);
  std::vector<double> bound;
  for (const double m : t.magnitude) bound.push_back(gamma(t.most_chunks + count + 1) * m);
  const Guarded out(n * size_of(type), side);
  ops.combine({t.terms.data(), count, n, out.data(), type});
  check_numbers(out, type, t.sum, bound, "combine " + std::to_string(count) + " terms, n " + std::to_string(n), outcome);
}

void check_sum_chunks(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const size_t n = random.between(1, 80), chunks = random.between(1, 9), distance = n + random.between(0, 5);
  const Side side = random_side(random);
  const Guarded parts = random_floats(random, (chunks - 1) * distance + n, side), out(n * 4, side);
  std::vector<double> sum(n, 0.0), bound(n, 0.0);
  for (size_t c = 0; c < chunks; ++c)
    for (size_t i = 0; i < n; ++i) {
      sum[i] += floats(parts)[c * distance + i];
      bound[i] += gamma(chunks) * std::fabs(floats(parts)[c * distance + i]);
    }
  ops.sum_chunks(floats(parts), chunks, distance, n, reinterpret_cast<float*>(out.data()));
  check_numbers(out, DataType::kF32, sum, bound, std::to_string(chunks) + " chunks, n " + std::to_string(n), outcome);
}

// One product of float32: no other result is right.
void check_widen(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const DataType type = random.pick(kTypes);
  const size_t n = random.between(1, 100), shift = random.between(0, 3);
  const float scale = random.one_in(2) ? 1.0f : random.normal();
  const Side side = random_side(random);
  const Guarded from(shift + n * size_of(type), side), to(n * 4, side);
  for (size_t i = 0; i < n * size_of(type); ++i) from.data()[shift + i] = static_cast<uint8_t>(random.bits());
  ops.widen(from.data() + shift, type, n, scale, reinterpret_cast<float*>(to.data()));
  ++outcome.cases;
  outcome.require(to.surroundings_untouched(), "widen wrote outside");
  for (size_t i = 0; i < n; ++i) {
    const float exact = load(from.data() + shift + i * size_of(type), type) * scale, got = floats(to)[i];
    const bool right = std::isnan(exact) ? std::isnan(got) : bits_of(got) == bits_of(exact);
    outcome.require(right, std::to_string(got) + " of " + name_of(type) + ", expected " + std::to_string(exact));
  }
}

constexpr int kRounds = 300;

}  // namespace

void add_combine_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level) return;
  const auto add = [&](const char* name, auto check) {
    tests.push_back({name_of(level), name, [&ops, check](Random& random, Outcome& outcome) {
                       for (int i = 0; i < kRounds; ++i) check(ops, random, outcome);
                     }});
  };
  add("combine", check_combine);
  add("sum_chunks", check_sum_chunks);
  add("widen", check_widen);
}

}  // namespace ort_hina::native_tests
