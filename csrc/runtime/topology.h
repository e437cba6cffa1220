// The memory nodes of this machine, and which of their CPUs and memory this process may use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/page_map.h"

namespace ort_hina::runtime {

struct NumaNode {
  uint32_t id;                      // the system's; of these there may be gaps
  std::vector<uint32_t> cpus;       // that this process may use, ascending
  bool memory_allowed;              // whether this process may allocate memory here
  uint64_t memory_bytes;            // 0: it has none, or the system does not say
  uint64_t free_bytes;              // when this was read: unused, or page cache that can be given back
  std::vector<uint32_t> distances;  // to each node, by index; 10 is its own
};

struct Topology {
  std::vector<NumaNode> nodes;          // by plan::Node, ascending ids; at least one
  std::vector<uint32_t> cpus;           // that this process may use, ascending, whether a node has them or not
  std::vector<plan::Node> node_of_cpu;  // of every CPU, whether this process may use it or not; kUnknownNode: of none

  // Whether this process may use CPUs of several nodes. If not, there is nothing to do for placement.
  bool multi_node() const;
  // kUnknownNode where there is no node of this id.
  plan::Node node_of_id(uint32_t id) const;
};

// Where to read. Tests have trees of their own.
struct TopologySource {
  std::string sysfs = "/sys";
  std::string status = "/proc/self/status";
  std::vector<uint32_t> cpus = {};  // that the process may use; empty: allowed_cpus()
};

// Any machine has an answer: without sysfs one node with all CPUs. Of more than 254 nodes the rest is left out.
Topology read_topology(const TopologySource& source);

// free_bytes of each node, now.
std::vector<uint64_t> read_free_bytes(const Topology& topology, const std::string& sysfs = "/sys");

// The CPUs of each physical core, of those in `cpus` only; cores in the order of their first CPU.
std::vector<std::vector<uint32_t>> physical_cores(const std::vector<uint32_t>& cpus, const std::string& sysfs = "/sys");

// Of this process, read once. The reference stays good to the end of the process.
const Topology& topology();
// Read again, since threads may have been started or pinned; topology() is this from now on. Nodes keep their indices unless
// the machine's nodes have changed.
const Topology& refreshed_topology();

// The node whose CPU runs the caller now. Costs a few nanoseconds.
plan::Node current_node();

}  // namespace ort_hina::runtime
