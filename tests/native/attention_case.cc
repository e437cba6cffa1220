#include "attention_case.h"

#include <algorithm>
#include <cmath>

#include "elements.h"

namespace ort_hina::native_tests {
namespace {

using kernels::KeyRange;
using kernels::padded_head;

const std::vector<DataType> kTypes = {DataType::kF32, DataType::kF16, DataType::kBF16};
// Of models, and in between.
const std::vector<size_t> kHeadSizes = {48, 64, 80, 100, 112, 128, 192, 256};

size_t random_size(Random& random) { return random.one_in(3) ? random.pick(kHeadSizes) : random.between(1, 80); }

}  // namespace

std::string AttentionCase::text() const {
  return std::to_string(rows) + " rows, " + std::to_string(keys) + " keys of " + std::to_string(key_size) + " and " +
         std::to_string(value_size) + ", " + name_of(type) + (softcap > 0 ? ", soft cap" : "") + (biased ? ", bias" : "");
}

AttentionCase random_attention(Random& random) {
  AttentionCase c = {random.between(1, random.one_in(3) ? 70 : 17), random.between(1, random.one_in(4) ? 300 : 70),
                     random_size(random), random_size(random), random.pick(kTypes)};
  c.scale = random.pick(std::vector<float>{1.0f, 0.25f, -0.5f}) / std::max(1.0f, std::sqrt(c.key_size / 16.0f));
  c.softcap = random.one_in(3) ? 3.0f : 0.0f;
  c.biased = random.one_in(2);
  for (KeyRange& visible : c.visible) {
    const size_t begin = random.between(0, c.keys), end = random.between(begin, c.keys);
    if (random.one_in(2)) visible = {begin, end};
  }
  return c;
}

AttentionCase bf16_attention(size_t rows, size_t keys, size_t key_size, size_t value_size, bool causal) {
  AttentionCase c = {rows, keys, key_size, value_size, DataType::kBF16};
  c.scale = 1.0f / std::sqrt(static_cast<float>(key_size));
  for (size_t r = 0; causal && r < rows; ++r) c.visible[r].end = keys + r + 1 > rows ? keys + r + 1 - rows : 0;
  return c;
}

void Elements::set(size_t i, float value) const { store(at(i), type_, value); }
double Elements::get(size_t i) const { return load(at(i), type_); }

AttentionOperands::AttentionOperands(const AttentionCase& c, Side side, Random& random)
    : queries(c.rows * padded_head(c.key_size), DataType::kF32, side),
      keys(c.keys * c.key_size, c.type, side),
      values(c.keys * c.value_size, c.type, side),
      bias(c.rows * c.keys, c.type, side),
      scratch(kernels::attend_scratch(c.rows, c.key_size), DataType::kF32, side),
      state(c.rows * (padded_head(c.value_size) + 2), DataType::kF32, side) {
  for (size_t i = 0; i < c.rows * padded_head(c.key_size); ++i)
    queries.set(i, i % padded_head(c.key_size) < c.key_size ? random.normal() : 0.0f);
  for (size_t j = 0; j < c.keys; ++j) {
    const bool seen =
        std::any_of(c.visible.begin(), c.visible.end(), [&](const KeyRange& v) { return v.begin <= j && j < v.end; });
    for (size_t i = 0; seen && i < c.key_size; ++i) keys.set(j * c.key_size + i, random.normal());
    for (size_t i = 0; seen && i < c.value_size; ++i) values.set(j * c.value_size + i, random.normal());
  }
  for (size_t r = 0; r < c.rows; ++r) {
    for (size_t j = c.visible[r].begin; j < c.visible[r].end; ++j) bias.set(r * c.keys + j, random.normal());
    biases.push_back(bias.at(r * c.keys));
  }
  reset_state(c);
}

void AttentionOperands::reset_state(const AttentionCase& c) const {
  for (size_t i = 0; i < c.rows * (padded_head(c.value_size) + 2); ++i) state.set(i, i < c.rows ? -INFINITY : 0.0f);
}

void attend(const kernels::VectorOps& ops, const AttentionCase& c, const AttentionOperands& o, size_t cut) {
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
  const KeyRange runs[] = {{0, cut / 3}, {cut / 3, cut}};
  args.range = {0, cut};
  args.runs = runs;
  args.run_count = 2;
  ops.attend(args);
  args.range = {cut, c.keys};
  args.runs = nullptr;
  ops.attend(args);
}

}  // namespace ort_hina::native_tests
