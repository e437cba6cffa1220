// On which nodes the pages of a range of memory lie.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "plan/page_map.h"
#include "runtime/topology.h"

namespace ort_hina::runtime {

// Of the bytes from `begin`, which may lie anywhere in a page. The memory must be readable: its pages are mapped first, which
// reads what is not yet in the page cache. Bytes of which the kernel will not tell the node, or tells one that is not in the
// topology, are on kUnknownNode; there is no error. Takes about 70 ms per GB of 4 KB pages that are in memory.
plan::PageMap query_placement(const void* begin, size_t bytes, const Topology& topology);

// Where pages lie that are mapped already: nothing is read, nothing is mapped.
struct PageSource {
  size_t page_bytes;
  // The nodes of `count` pages from `first`. False: the kernel answers no such question.
  std::function<bool(uintptr_t first, size_t count, plan::Node* nodes)> ask;
};

// The kernel's. The topology must outlive it.
PageSource mapped_pages(const Topology& topology);

}  // namespace ort_hina::runtime
