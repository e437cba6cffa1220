// Tokens into bf16 blocks, in lanes and in rows: exactly the nearest bf16 numbers at exactly their places.
#include <cmath>
#include <string>

#include "bounds.h"
#include "elements.h"
#include "guarded.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::kBlockTokens;

struct Shape {
  DataType type;
  size_t count, n, padded, ld, row_shift;
  bool lanes, scaled;

  size_t index(size_t token, size_t input) const {
    return lanes ? input / 2 * 2 * kBlockTokens + 2 * token + input % 2 : token * ld + input;
  }
  size_t elements() const { return lanes ? kBlockTokens * padded : (count - 1) * ld + padded; }
  std::string text() const {
    return std::string(name_of(type)) + " tokens " + std::to_string(count) + " n " + std::to_string(n) + " padded " +
           std::to_string(padded) + (lanes ? " lanes" : " rows") + (scaled ? " scaled" : "");
  }
};

Shape random_shape(Random& random) {
  Shape s;
  s.type = random.pick<DataType>({DataType::kF32, DataType::kF16, DataType::kBF16});
  s.count = random.between(1, kBlockTokens);
  s.n = random.between(1, 100);
  s.padded = (s.n + 1) / 2 * 2 + random.pick<size_t>({0, 2, 30});
  s.ld = s.padded + random.pick<size_t>({0, 2, 32});
  s.row_shift = random.between(0, 3);
  s.lanes = random.one_in(2);
  s.scaled = random.one_in(2);
  return s;
}

float random_value(Random& random, DataType type) {
  if (random.one_in(60)) return random.pick<float>({NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3.3e38f});
  return rounded(std::ldexp(random.normal(), static_cast<int>(random.between(0, 30)) - 20), type);
}

// Conversion may flush subnormal numbers, and choose a NaN's payload.
bool is_right(float got, float exact) {
  if (std::isnan(exact)) return std::isnan(got);
  if (std::fabs(exact) < kSmallestNormal && got == 0) return true;
  return bits_of(got) == bits_of(from_bf16(to_bf16(exact)));
}

// The tokens of one block, each in memory of its own.
struct Tokens {
  Tokens(Random& random, const Shape& s, Side side) : shape(s) {
    for (size_t t = 0; t < s.count; ++t) {
      memory.emplace_back(s.row_shift + s.n * size_of(s.type), side);
      rows.push_back(memory.back().data() + s.row_shift);
      scales.push_back(s.scaled ? random.normal() : 1);
      for (size_t i = 0; i < s.n; ++i) store(at(t, i), s.type, random_value(random, s.type));
    }
  }

  uint8_t* at(size_t token, size_t input) const {
    return memory[token].data() + shape.row_shift + input * size_of(shape.type);
  }
  // Of an absent token or input: 0.
  float expected(size_t token, size_t input) const {
    return token < shape.count && input < shape.n ? load(at(token, input), shape.type) * scales[token] : 0;
  }

  const Shape& shape;
  std::vector<Guarded> memory;
  std::vector<const void*> rows;
  std::vector<float> scales;
};

void check_pack(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const Shape s = random_shape(random);
  const Side side = random.one_in(2) ? Side::kEnd : Side::kStart;
  const Tokens tokens(random, s, side);
  const Guarded to(s.elements() * 2, side, 2);
  ops.pack({tokens.rows.data(), s.type, s.scaled ? tokens.scales.data() : nullptr, s.count, s.n, s.padded,
            reinterpret_cast<uint16_t*>(to.data()), s.ld, s.lanes});
  ++outcome.cases;
  outcome.require(to.surroundings_untouched(), "wrote outside of the block: " + s.text());
  std::vector<bool> described(s.elements(), false);
  for (size_t t = 0; t < (s.lanes ? kBlockTokens : s.count); ++t)
    for (size_t i = 0; i < s.padded; ++i) {
      const float got = load(to.data() + 2 * s.index(t, i), DataType::kBF16), want = tokens.expected(t, i);
      described[s.index(t, i)] = true;
      const bool present = t < s.count && i < s.n;
      outcome.require(present ? is_right(got, want) : got == 0,
                      "input " + std::to_string(i) + " of token " + std::to_string(t) + " is " + std::to_string(got) +
                          ", expected " + std::to_string(want) + ": " + s.text());
    }
  for (size_t e = 0; e < s.elements(); ++e)
    outcome.require(described[e] || (to.data()[2 * e] & to.data()[2 * e + 1]) == 0xFF, "wrote between rows: " + s.text());
}

constexpr int kRounds = 400;

}  // namespace

void add_pack_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level || !ops.pack) return;
  tests.push_back({name_of(level), "pack", [&ops](Random& random, Outcome& outcome) {
                     for (int i = 0; i < kRounds; ++i) check_pack(ops, random, outcome);
                   }});
}

}  // namespace ort_hina::native_tests
