// What attention computes of a block of query rows, and the contract of its kernel.
#pragma once
#include "kernels/types.h"

namespace ort_hina::kernels {

// Keys whose scores are held at once: with as many values of 512 elements in f32 they stay in L2.
constexpr size_t kAttentionKeys = 128;
// Query rows and sums of values are padded with zeros to a multiple of this, so that they are read in whole vectors at every level.
constexpr size_t kAttentionPadding = 32;
constexpr size_t padded_head(size_t size) { return (size + kAttentionPadding - 1) / kAttentionPadding * kAttentionPadding; }

// Keys [begin, end).
struct KeyRange {
  size_t begin, end;
};

// What a softmax over keys has come to: Σ e^(score - most) and the same sum weighted by the values.
struct AttentionState {
  float* most;    // [rows]; at first -Inf
  float* sum;     // [rows]; at first 0
  float* values;  // [rows, ld]; at first 0
  size_t ld;      // padded_head(value_size)
};

// Rows are computed with in whole vectors of them.
constexpr size_t padded_rows(size_t rows) { return (rows + 15) / 16 * 16; }

// Where there are tiles: a block's keys in bf16, or 128 columns of its values, a cache line behind each 16 of them; and the
// sums of six tiles.
constexpr size_t attend_tiles(size_t key_size) {
  const size_t keys = kAttentionKeys * padded_head(key_size) / 2, values = 8 * (kAttentionKeys * 16 / 2 + 16);
  return (keys > values ? keys : values) + 6 * 256;
}

// Elements of AttendArgs::scratch, in terms of these rows: queries in lanes, scores, weights and what each row sees; and
// besides a few keys, widened, a bias, tiles, and what the parts lose to alignment.
constexpr size_t attend_scratch(size_t rows, size_t key_size) {
  return padded_rows(rows) * (padded_head(key_size) + 2 * kAttentionKeys + 9) + 16 * padded_head(key_size) +
         attend_tiles(key_size) + 512;
}

// Query rows against the keys of one cache; the state is carried on. A key that a row does not see is as if it were absent,
// whatever lies there.
struct AttendArgs {
  const float* queries;  // [rows, padded_head(key_size)]
  size_t rows;
  const void* keys;    // [.., key_size]
  const void* values;  // [.., value_size]
  DataType type;       // of both
  size_t key_size, value_size;
  KeyRange range;           // the keys of this call
  const KeyRange* runs;     // of these keys: only those in here, ascending; null: all
  size_t run_count;
  const void* next_keys;    // what the thread reads after them, fetched at the end; null: nothing
  size_t next_count;        // of keys
  const KeyRange* visible;  // of each row
  const void* const* bias;  // of each row, from key 0 on; null: none
  DataType bias_type;
  float scale;    // of the products
  float softcap;  // 0: none
  float* scratch;  // attend_scratch() elements
  AttentionState state;
};

}  // namespace ort_hina::kernels
