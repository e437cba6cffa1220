// A matrix of weights as it lies in memory, whatever its rows mean: outputs ([N,K]) or inputs ([K,N]).
#pragma once
#include <cstddef>
#include <cstdint>

namespace ort_hina::plan {

struct StoredMatrix {
  uint64_t begin;       // bytes from the begin of the range that a PageMap describes
  uint32_t rows;
  uint32_t columns;     // contiguous elements of a row
  uint32_t element;     // bytes
  uint64_t row_stride;  // bytes between the begins of rows; at least columns * element

  uint64_t row_bytes() const { return uint64_t{columns} * element; }
  uint64_t row_begin(uint64_t row) const { return begin + row * row_stride; }
};

}  // namespace ort_hina::plan
