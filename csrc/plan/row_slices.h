// Which node each page of a range should lie on, if every matrix is to be cut by whole rows. Pure.
#pragma once
#include <vector>

#include "plan/page_map.h"
#include "plan/stored_matrix.h"

namespace ort_hina::plan {

struct NodeSlice {
  uint64_t begin, end;  // bytes from the range's begin
  Node node;
};

// Where the pages are in a range of bytes.
struct PageGrid {
  uint64_t page;   // bytes
  uint64_t phase;  // bytes of the first page that lie before the range
};

// Cuts [0, bytes) into slices, ascending, each with its node, no two neighbours with the same. Of each matrix, node n is
// meant to get weights[n] / sum of the rows, in the order of the nodes. Slices meet between pages: a page goes to the node
// that is meant to get most bytes of it (the first such), and one without a byte of a matrix with the page before it (at the
// begin: after it). Without matrices the pages themselves are the rows of one.
//
// Throws std::invalid_argument: a matrix reaches out of the range, or no weight is above 0, or one is below 0.
std::vector<NodeSlice> row_slices(const std::vector<StoredMatrix>& matrices, uint64_t bytes, const std::vector<double>& weights,
                                  const PageGrid& grid);

}  // namespace ort_hina::plan
