// Attention of random query rows over a random cache, for the operations of one level: operands in guarded memory.
#pragma once
#include <string>
#include <vector>

#include "guarded.h"
#include "kernels/kernel.h"
#include "random.h"

namespace ort_hina::native_tests {

struct AttentionCase {
  size_t rows, keys, key_size, value_size;
  DataType type;
  float scale = 1.0f, softcap = 0.0f;
  bool biased = false;
  std::vector<kernels::KeyRange> visible = std::vector<kernels::KeyRange>(rows, {0, keys});

  bool seen(size_t row, size_t key) const { return visible[row].begin <= key && key < visible[row].end; }
  std::string text() const;
};

AttentionCase random_attention(Random& random);
// Whose rows see all keys or, `causal`, up to one more than the row before, the last one all.
AttentionCase bf16_attention(size_t rows, size_t keys, size_t key_size, size_t value_size, bool causal);

// Elements of one type between forbidden pages; those that are not set are NaN.
class Elements {
 public:
  Elements(size_t count, DataType type, Side side) : type_(type), bytes_(count * size_of(type), side, size_of(type)) {}
  void set(size_t i, float value) const;
  double get(size_t i) const;
  uint8_t* at(size_t i) const { return bytes_.data() + i * size_of(type_); }
  float* floats() const { return reinterpret_cast<float*>(bytes_.data()); }
  bool untouched() const { return bytes_.surroundings_untouched(); }

 private:
  DataType type_;
  Guarded bytes_;
};

// What the kernel is given, and what it made of the state. Values of a key that no row sees are NaN.
struct AttentionOperands {
  AttentionOperands(const AttentionCase& c, Side side, Random& random);
  // That of the beginning: nothing is summed.
  void reset_state(const AttentionCase& c) const;
  bool untouched() const {
    return queries.untouched() && keys.untouched() && values.untouched() && scratch.untouched() && state.untouched();
  }

  Elements queries, keys, values, bias, scratch, state;
  std::vector<const void*> biases;
};

// In two calls, so that the state is carried on, the first one of two runs; `cut` is where the second call begins.
void attend(const kernels::VectorOps& ops, const AttentionCase& c, const AttentionOperands& o, size_t cut);

}  // namespace ort_hina::native_tests
