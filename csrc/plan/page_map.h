// Where the pages of a range of memory lie, as the kernel told it: runs of bytes on one node.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::plan {

// A node's index in runtime::Topology::nodes, not the system's id, of which there may be gaps.
using Node = uint8_t;
// Of pages that the kernel has not told the node of.
constexpr Node kUnknownNode = 255;

class PageMap {
 public:
  struct Run {
    uint64_t begin, end;  // bytes from the range's begin
    Node node;
  };

  // The next bytes of the range lie on this node. Joined to the last run where that is on the same node.
  void append(uint64_t bytes, Node node);

  uint64_t bytes() const { return runs_.empty() ? 0 : runs_.back().end; }
  const std::vector<Run>& runs() const { return runs_; }
  // The index of the run that holds a byte below bytes().
  size_t find(uint64_t byte) const;
  // Of [0, bytes()): bytes on a node, or of unknown place.
  uint64_t bytes_on(Node node) const;

 private:
  std::vector<Run> runs_;
};

}  // namespace ort_hina::plan
