// Attention of a block of query rows: within its bounds, and nothing read that a row does not see.
#include <algorithm>
#include <cmath>
#include <string>

#include "bounds.h"
#include "elements.h"
#include "guarded.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::KeyRange;
using kernels::padded_head;

const std::vector<DataType> kTypes = {DataType::kF32, DataType::kF16, DataType::kBF16};

struct AttentionCase {
  size_t rows, keys, key_size, value_size;
  DataType type;
  float scale, softcap;
  bool biased;
  std::vector<KeyRange> visible;

  std::string text() const {
    return std::to_string(rows) + " rows, " + std::to_string(keys) + " keys of " + std::to_string(key_size) + " and " +
           std::to_string(value_size) + ", " + name_of(type) + (softcap > 0 ? ", soft cap" : "") + (biased ? ", bias" : "");
  }
};

AttentionCase random_case(Random& random) {
  AttentionCase c;
  c.rows = random.between(1, random.one_in(3) ? 70 : 11);
  c.keys = random.between(1, random.one_in(4) ? 300 : 70);
  c.key_size = random.between(1, 80);
  c.value_size = random.between(1, 80);
  c.type = random.pick(kTypes);
  c.scale = random.pick(std::vector<float>{1.0f, 0.25f, -0.5f});
  c.softcap = random.one_in(3) ? 3.0f : 0.0f;
  c.biased = random.one_in(2);
  for (size_t r = 0; r < c.rows; ++r) {
    const size_t begin = random.between(0, c.keys), end = random.between(begin, c.keys);
    c.visible.push_back(random.one_in(2) ? KeyRange{0, c.keys} : KeyRange{begin, end});
  }
  return c;
}

// Elements of one type between forbidden pages; those that are not set are NaN.
class Elements {
 public:
  Elements(size_t count, DataType type, Side side) : type_(type), bytes_(count * size_of(type), side, size_of(type)) {}
  void set(size_t i, float value) const { store(at(i), type_, value); }
  double get(size_t i) const { return load(at(i), type_); }
  uint8_t* at(size_t i) const { return bytes_.data() + i * size_of(type_); }
  float* floats() const { return reinterpret_cast<float*>(bytes_.data()); }
  bool untouched() const { return bytes_.surroundings_untouched(); }

 private:
  DataType type_;
  Guarded bytes_;
};

// What the kernel is given, and what it made of the state.
struct Operands {
  Operands(const AttentionCase& c, Side side, Random& random)
      : queries(c.rows * padded_head(c.key_size), DataType::kF32, side),
        keys(c.keys * c.key_size, c.type, side),
        values(c.keys * c.value_size, c.type, side),
        bias(c.rows * c.keys, c.type, side),
        scratch(kernels::attend_scratch(c.rows, c.key_size), DataType::kF32, side),
        state(c.rows * (padded_head(c.value_size) + 2), DataType::kF32, side) {
    for (size_t i = 0; i < c.rows * padded_head(c.key_size); ++i)
      queries.set(i, i % padded_head(c.key_size) < c.key_size ? random.normal() : 0.0f);
    for (size_t j = 0; j < c.keys; ++j) {
      // The values of a key that no row sees stay NaN.
      const bool seen = std::any_of(c.visible.begin(), c.visible.end(),
                                    [&](const KeyRange& v) { return v.begin <= j && j < v.end; });
      for (size_t i = 0; seen && i < c.key_size; ++i) keys.set(j * c.key_size + i, random.normal());
      for (size_t i = 0; seen && i < c.value_size; ++i) values.set(j * c.value_size + i, random.normal());
    }
    for (size_t r = 0; r < c.rows; ++r) {
      for (size_t j = c.visible[r].begin; j < c.visible[r].end; ++j) bias.set(r * c.keys + j, random.normal());
      biases.push_back(bias.at(r * c.keys));
      state.set(r, -INFINITY);
    }
    for (size_t i = c.rows; i < c.rows * (padded_head(c.value_size) + 2); ++i) state.set(i, 0.0f);
  }
  bool untouched() const {
    return queries.untouched() && keys.untouched() && values.untouched() && scratch.untouched() && state.untouched();
  }

  Elements queries, keys, values, bias, scratch, state;
  std::vector<const void*> biases;
};

// In two calls, so that the state is carried on.
void attend(const kernels::VectorOps& ops, const AttentionCase& c, const Operands& o, size_t cut) {
  kernels::AttendArgs args = {};
  args.queries = o.queries.floats();
  args.rows = c.rows;
  args.keys = o.keys.at(0);
  args.values = o.values.at(0);
  args.type = args.bias_type = c.type;
  args.key_size = c.key_size;
  args.value_size = c.value_size;
  args.visible = c.visible.data();
  args.bias = c.biased ? o.biases.data() : nullptr;
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.scratch = o.scratch.floats();
  float* const state = o.state.floats();
  args.state = {state, state + c.rows, state + 2 * c.rows, padded_head(c.value_size)};
  args.range = {0, cut};
  ops.attend(args);
  args.range = {cut, c.keys};
  ops.attend(args);
}

// A score and how far an evaluation in f32 may be from it.
struct Score {
  double value, error;
};

// Rounding to bf16, of what keys of bf16 are multiplied with at the levels that have such products.
constexpr double kHalfUnit = 1.0 / 256;

bool rounds(const kernels::VectorOps& ops, const AttentionCase& c) {
  return ops.isa >= Isa::kAvx512Bf16 && c.type == DataType::kBF16 && c.rows > 2 && c.key_size % 2 == 0;
}

Score score_of(const AttentionCase& c, const Operands& o, size_t row, size_t key, bool rounded) {
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

void check_row(const AttentionCase& c, const Operands& o, size_t row, bool rounded, Outcome& outcome) {
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

void check_attend(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const AttentionCase c = random_case(random);
  const Operands operands(c, random.one_in(2) ? Side::kEnd : Side::kStart, random);
  attend(ops, c, operands, random.between(0, c.keys));
  ++outcome.cases;
  outcome.require(operands.untouched(), "wrote outside: " + c.text());
  for (size_t row = 0; row < c.rows; ++row) check_row(c, operands, row, rounds(ops, c), outcome);
}

constexpr int kRounds = 150;

}  // namespace

void add_attention_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level) return;
  tests.push_back({name_of(level), "attend", [&ops](Random& random, Outcome& outcome) {
                     for (int i = 0; i < kRounds; ++i) check_attend(ops, random, outcome);
                   }});
}

}  // namespace ort_hina::native_tests
