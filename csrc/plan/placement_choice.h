// What is to be done with a range of weights, given what the nodes have. Pure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan/page_map.h"

namespace ort_hina::plan {

// Session config entry ort_hina.numa.
enum class NumaMode {
  kOff,         // placement is not looked at
  kRead,        // weights stay where they are, and are read from there
  kInterleave,  // their pages are spread over the nodes in turn
  kBind,        // of each matrix, each node gets rows
};

// off, read, interleave, bind; nothing for any other name.
std::optional<NumaMode> numa_mode(const std::string& name);

struct NodeCapacity {
  uint32_t id;          // the system's, for the reason
  uint64_t free_bytes;
  bool memory_allowed;  // the process may allocate here
  double threads;       // that will read; 0: none
};

struct PlacementChoice {
  enum class Action { kLeave, kInterleave, kBind } action = Action::kLeave;
  std::vector<Node> nodes;  // ascending; empty where nothing is done
  std::string reason;       // why it is not what the mode asks for; empty where it is
};

// `bytes` more are to be allocated. Of what a node has free, an eighth stays free. A slice that did not fit where it is bound
// to would end the process (the kernel kills it), so kBind wants room for every node's share in proportion to its threads;
// else the range is interleaved over the nodes with threads that have room for an equal share, or where they are too few, over
// all that have; and if not even that fits, it stays where it is.
PlacementChoice choose_placement(NumaMode mode, uint64_t bytes, const std::vector<NodeCapacity>& nodes);

// A node that holds at least 90 % of the range, while another one of `usable` could have a part: kUnknownNode if none does, or
// the range is too small to tell (below two huge pages of 2 MiB).
Node crowded_node(const PageMap& map, const std::vector<Node>& usable);

}  // namespace ort_hina::plan
