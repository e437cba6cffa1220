// Attention of a block of query rows: within its bounds, and nothing read that a row does not see.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "attention_case.h"
#include "bounds.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::KeyRange;
using kernels::padded_head;

// A score and how far an evaluation in f32 may be from it.
struct Score {
  double value, error;
};

// Rounding to bf16, of what keys of bf16 are multiplied with at the levels that have such products.
constexpr double kHalfUnit = 1.0 / 256;

bool rounds(const kernels::VectorOps& ops, const AttentionCase& c) {
  return ops.isa >= Isa::kAvx512Bf16 && c.type == DataType::kBF16 && c.rows > 2 && c.key_size % 2 == 0;
}

Score score_of(const AttentionCase& c, const AttentionOperands& o, size_t row, size_t key, bool rounded) {
  double sum = 0, magnitude = 0;
  for (size_t i = 0; i < c.key_size; ++i) {
    const double product = o.queries.get(row * padded_head(c.key_size) + i) * o.keys.get(key * c.key_size + i);
    sum += product;
    magnitude += std::fabs(product);
  }
  double s = c.scale * sum, error = std::fabs(c.scale) * (gamma(c.key_size + 1) + (rounded ? kHalfUnit : 0)) * magnitude;
  if (c.softcap > 0) {
    error += kUnit * std::fabs(s);
    s = c.softcap * std::tanh(s / c.softcap);
    error += 10 * kUnit * std::fabs(s);
  }
  if (c.biased) s += o.bias.get(row * c.keys + key), error += kUnit * std::fabs(s);
  return {s, 1.01 * error};
}

void check_row(const AttentionCase& c, const AttentionOperands& o, size_t row, bool rounded, Outcome& outcome) {
  const size_t ld = padded_head(c.value_size);
  const KeyRange visible = c.visible[row];
  const double most = o.state.get(row), sum = o.state.get(c.rows + row);
  if (visible.begin == visible.end)
    return outcome.require(most == -INFINITY && sum == 0, "a row that sees nothing has a sum: " + c.text());
  // The error of a weight: its score, the distance to the maximum, the exponential, and blocks in which the maximum moves.
  const double blocks = static_cast<double>(c.keys / kernels::kAttentionKeys + 3);
  double total = 0, total_error = 0;
  std::vector<double> values(c.value_size), errors(c.value_size);
  for (size_t j = visible.begin; j < visible.end; ++j) {
    const Score s = score_of(c, o, row, j, rounded);
    const double w = std::exp(s.value - most);
    const double exponent = s.error + kUnit * (most - s.value + s.error) + (4 + 5 * blocks) * kUnit;
    const double error = w * (std::expm1(exponent) + 1.01 * gamma(c.keys + 16));
    total += w;
    total_error += error;
    for (size_t i = 0; i < c.value_size; ++i) {
      values[i] += w * o.values.get(j * c.value_size + i);
      errors[i] += (error + (rounded ? kHalfUnit * (w + error) : 0)) * std::fabs(o.values.get(j * c.value_size + i));
    }
  }
  if (!outcome.within(std::fabs(sum - total), total_error))
    outcome.fail("sum " + std::to_string(sum) + ", expected " + std::to_string(total) + ": " + c.text());
  for (size_t i = 0; i < c.value_size; ++i) {
    const double found = o.state.get(2 * c.rows + row * ld + i);
    if (!outcome.within(std::fabs(found - values[i]), errors[i]))
      outcome.fail(std::to_string(found) + ", expected " + std::to_string(values[i]) + ": " + c.text());
  }
}

void check_attend(const kernels::VectorOps& ops, const AttentionCase& c, Random& random, Outcome& outcome) {
  const AttentionOperands operands(c, random.one_in(2) ? Side::kEnd : Side::kStart, random);
  attend(ops, c, operands, random.between(0, c.keys));
  ++outcome.cases;
  outcome.require(operands.untouched(), "wrote outside: " + c.text());
  for (size_t row = 0; row < c.rows; ++row) check_row(c, operands, row, rounds(ops, c), outcome);
}

// Rows and heads that fill tiles and that do not.
void check_sizes(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const std::vector<std::pair<size_t, size_t>> heads = {{48, 48}, {64, 64}, {80, 80}, {112, 112}, {128, 128}, {192, 128}};
  for (const size_t rows : {8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 70})
    for (const auto& [key_size, value_size] : heads) {
      const size_t keys = random.pick(std::vector<size_t>{random.between(1, 300), 16, 128, 129});
      check_attend(ops, bf16_attention(rows, keys, key_size, value_size, random.one_in(2)), random, outcome);
    }
}

// What an element that is not finite does to an answer, in bits and in what is not finite.
struct Spread {
  const AttentionCase& c;
  const AttentionOperands& o;
  std::vector<float> before;

  Spread(const kernels::VectorOps& ops, const AttentionCase& c, const AttentionOperands& o, const Elements& changed,
         size_t i, float value, size_t cut)
      : c(c), o(o) {
    attend(ops, c, o, cut);
    before.resize(c.rows * (ld() + 2));
    std::memcpy(before.data(), o.state.at(0), before.size() * sizeof(float));
    changed.set(i, value);
    o.reset_state(c);
    attend(ops, c, o, cut);
  }
  size_t ld() const { return padded_head(c.value_size); }
  size_t at(size_t row, size_t column) const { return 2 * c.rows + row * ld() + column; }
  float now(size_t i) const { return static_cast<float>(o.state.get(i)); }
  bool finite(size_t row, size_t column) const { return std::isfinite(now(at(row, column))); }
  bool row_unchanged(size_t row) const {
    bool same = now(row) == before[row] && now(c.rows + row) == before[c.rows + row];
    for (size_t i = 0; i < c.value_size; ++i) same &= now(at(row, i)) == before[at(row, i)];
    return same;
  }
};

// It is in the sums of the rows that see it, in its column, and changes no bit of the others'.
void check_infinite_value(const kernels::VectorOps& ops, Random& random, float value, Outcome& outcome) {
  const AttentionCase c = random_attention(random);
  const AttentionOperands operands(c, Side::kEnd, random);
  const size_t key = random.between(0, c.keys - 1), element = random.between(0, c.value_size - 1);
  const Spread spread(ops, c, operands, operands.values, key * c.value_size + element, value, random.between(0, c.keys));
  ++outcome.cases;
  for (size_t r = 0; r < c.rows; ++r) {
    if (!c.seen(r, key)) outcome.require(spread.row_unchanged(r), "it spreads: " + c.text());
    for (size_t i = 0; c.seen(r, key) && i < c.value_size; ++i)
      outcome.require(spread.finite(r, i) == (i != element), "it is lost or in another column: " + c.text());
  }
}

void check_nan_key(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const AttentionCase c = random_attention(random);
  const AttentionOperands operands(c, Side::kEnd, random);
  const size_t key = random.between(0, c.keys - 1), element = random.between(0, c.key_size - 1);
  const Spread spread(ops, c, operands, operands.keys, key * c.key_size + element, NAN, random.between(0, c.keys));
  ++outcome.cases;
  for (size_t r = 0; r < c.rows; ++r)
    outcome.require(c.seen(r, key) ? !spread.finite(r, 0) : spread.row_unchanged(r), "it is lost or spreads: " + c.text());
}

constexpr int kRounds = 150;

}  // namespace

void add_attention_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level) return;
  tests.push_back({name_of(level), "attend", [&ops](Random& random, Outcome& outcome) {
                     for (int i = 0; i < kRounds; ++i) check_attend(ops, random_attention(random), random, outcome);
                   }});
  tests.push_back({name_of(level), "attend: sizes of bf16",
                   [&ops](Random& random, Outcome& outcome) { check_sizes(ops, random, outcome); }});
  tests.push_back({name_of(level), "attend: what is not finite", [&ops](Random& random, Outcome& outcome) {
                     for (int i = 0; i < kRounds; ++i) {
                       for (const float value : {NAN, INFINITY}) check_infinite_value(ops, random, value, outcome);
                       check_nan_key(ops, random, outcome);
                     }
                   }});
}

}  // namespace ort_hina::native_tests
