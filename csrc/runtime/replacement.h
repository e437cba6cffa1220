// Moves memory to other nodes in place: same addresses, same content.
#pragma once
#include <string>
#include <vector>

#include "plan/row_slices.h"
#include "runtime/topology.h"

namespace ort_hina::runtime {

struct Replacement {
  std::string error;          // empty: done. Otherwise what stopped it; what was moved before is as good as what was not
  uint64_t bytes = 0;         // moved, or found to be in place
  uint64_t copied_bytes = 0;  // of these, pages of a file that the process has a copy of now (the page cache keeps its own)
  double seconds = 0;
};

// Both touch the pages only that lie wholly in the range: its first and last page may belong to others, too. The range has to be
// private memory: writable mappings of files, or anonymous memory. Pages of files become copies, anonymous ones are copied and
// exchanged; either is safe beside threads that read, not beside threads that write. Where a file mapping is shared or
// read-only, the kernel refuses, or memory runs out, the rest of the range stays as it is, and the error says so.
//
// The range is left with the rule "interleave" in the kernel, which also keeps NUMA balancing away from it.
//
// Throw std::invalid_argument for a node that is not in the topology, and for slices that are not ascending in the range.

// The pages of the range lie on these nodes in turn; by huge pages where the system makes them.
Replacement interleave(void* begin, size_t bytes, const std::vector<plan::Node>& nodes, const Topology& topology);

// The pages of each slice lie on its node. Not `strict`: the kernel may take another where that one is full; strict: it would end
// the process rather (see plan::choose_placement).
Replacement bind(void* begin, size_t bytes, const std::vector<plan::NodeSlice>& slices, bool strict, const Topology& topology);

}  // namespace ort_hina::runtime
