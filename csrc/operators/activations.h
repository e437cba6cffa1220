// Rows of activations as a kernel wants them, somewhere in a workspace.
#pragma once
#include "kernels/table.h"

namespace ort_hina::operators {

constexpr size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

struct Activations {
  size_t at;          // bytes from the workspace's begin, 64-byte aligned
  size_t stride;      // elements between rows
  DataType type;      // kF32: rows; kBF16: blocks (kernels/kernel.h)
  uint32_t lanes_from;
  size_t bytes(size_t rows) const;
  // Where row `row` of inputs from `input` on begins; of bf16, row a multiple of kBlockTokens or blocks in rows.
  size_t place(size_t row, size_t input, size_t rows) const;
  bool in_lanes(size_t block, size_t rows) const;
};

// As the kernel wants so many inputs, at 0.
Activations activations_of(const kernels::MatmulKernel& kernel, size_t inputs);

inline bool same_form(const Activations& a, const Activations& b) { return a.type == b.type && a.lanes_from == b.lanes_from; }

// The distance between rows, in elements.
size_t padded_row(size_t elements, size_t element_bytes);

// Copies `count` inputs of all rows: the `rows_of` inputs first, first + step, ..., or (step 0) first + list[i]. Bases are the
// begins of the workspaces that `from` and `to` lie in. Inputs up to a kernel's whole step are 0.
struct InputChoice {
  size_t first, step, count;
  const uint32_t* list;
  size_t operator[](size_t i) const { return first + (step ? i * step : list[i]); }
};
void take_inputs(const uint8_t* from_base, const Activations& from, uint8_t* to_base, const Activations& to, size_t rows,
                 const InputChoice& inputs);

}  // namespace ort_hina::operators
