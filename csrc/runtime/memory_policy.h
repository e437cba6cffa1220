// The kernel's calls for the placement of pages, without libnuma. Nodes are the system's ids here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::runtime {

enum class Policy : int { kPreferred = 1, kBind = 2, kInterleave = 3 };  // as <linux/mempolicy.h> numbers them

// Whole pages.
struct PageRange {
  uintptr_t begin, end;
  size_t bytes() const { return end > begin ? end - begin : 0; }
};

size_t page_size();
// The pages that lie wholly in the range, and those that have a byte of it.
PageRange pages_inside(const void* begin, size_t bytes);
PageRange pages_around(const void* begin, size_t bytes);

// Each answers 0 or the errno of the refusal.

// The rule for pages that are allocated in the range from now on. `move`: those that are there and lie on none of the nodes
// move, too.
int set_policy(const PageRange& pages, Policy policy, const std::vector<uint32_t>& nodes, bool move = false);
// Whether the page at `address` is under this policy, of its own or of the calling thread.
bool has_policy(uintptr_t address, Policy policy, const std::vector<uint32_t>& nodes);
// For each of `count` pages from `first` its node, or a negative errno (-ENOENT: it is not mapped).
int query_nodes(uintptr_t first, size_t count, int* nodes);

// Maps the pages of readable memory, so that they can be asked about. On kernels that cannot do it by themselves (before 5.14)
// a byte of each is read. Stops at the first page that cannot be.
int populate_read(const PageRange& pages);
// Gives each page of a private, writable mapping memory of its own, with the same content. Older kernels as above.
int populate_write(const PageRange& pages);

}  // namespace ort_hina::runtime
