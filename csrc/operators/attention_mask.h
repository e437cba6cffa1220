// Which keys of a sequence its row of attention_mask lets be seen.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/attention.h"

namespace ort_hina::operators {

// The runs of elements that are not 0, in order, with at least one other element between any two. An element of
// `element_bytes` bytes is 0 if all of them are, as in every integer type and bool.
std::vector<kernels::KeyRange> runs_of_nonzero(const void* elements, size_t element_bytes, size_t count);

// Calls body with the part of each run that lies in `keys`, where there is any.
template <typename Body>
void for_each_run_in(const std::vector<kernels::KeyRange>& runs, const kernels::KeyRange& keys, const Body& body) {
  using kernels::KeyRange;
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const KeyRange& r) { return r.end <= keys.begin; });
  for (; run != runs.end() && run->begin < keys.end; ++run)
    body(KeyRange{std::max(run->begin, keys.begin), std::min(run->end, keys.end)});
}

}  // namespace ort_hina::operators
