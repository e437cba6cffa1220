#include "plan/placement_choice.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace ort_hina::plan {
namespace {

using Action = PlacementChoice::Action;

// What else runs there needs some, and a node that is quite full makes every later allocation slow.
uint64_t room(const NodeCapacity& node) { return node.memory_allowed ? node.free_bytes - node.free_bytes / 8 : 0; }

std::string gigabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", bytes / 1e9);
  return text;
}

// The largest set of `candidates` of which each has room for an equal share, the roomiest first.
std::vector<Node> with_room(uint64_t bytes, const std::vector<NodeCapacity>& nodes, std::vector<Node> candidates) {
  std::stable_sort(candidates.begin(), candidates.end(), [&](Node a, Node b) { return room(nodes[a]) > room(nodes[b]); });
  while (!candidates.empty() && room(nodes[candidates.back()]) < bytes / candidates.size() + 1) candidates.pop_back();
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

std::vector<Node> all_of(const std::vector<NodeCapacity>& nodes, bool with_threads) {
  std::vector<Node> found;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (room(nodes[n]) && (nodes[n].threads > 0 || !with_threads)) found.push_back(static_cast<Node>(n));
  return found;
}

std::string names(const std::vector<Node>& chosen, const std::vector<NodeCapacity>& nodes) {
  std::string text = chosen.size() == 1 ? "node" : "nodes";
  for (size_t i = 0; i < chosen.size(); ++i) text += (i ? ", " : " ") + std::to_string(nodes[chosen[i]].id);
  return text;
}

PlacementChoice interleaved(uint64_t bytes, const std::vector<NodeCapacity>& nodes) {
  const std::vector<Node> wanted = all_of(nodes, true);
  const std::vector<Node> near = with_room(bytes, nodes, wanted);
  if (near.size() > 1) {
    if (near.size() == wanted.size()) return {Action::kInterleave, near, ""};
    return {Action::kInterleave, near, "of the nodes with threads only " + names(near, nodes) + " have room"};
  }
  const std::vector<Node> any = with_room(bytes, nodes, all_of(nodes, false));
  if (any.size() > 1)
    return {Action::kInterleave, any, "the nodes with threads have no room for " + gigabytes(static_cast<double>(bytes)) +
                                          ": interleaved over " + names(any, nodes)};
  return {Action::kLeave, {}, "no two nodes have room for " + gigabytes(static_cast<double>(bytes)) + ": left where it is"};
}

// The first node whose share does not fit, in words; empty: all fit.
std::string misfit(uint64_t bytes, const std::vector<NodeCapacity>& nodes) {
  double threads = 0;
  for (const NodeCapacity& node : nodes) threads += node.threads;
  for (const NodeCapacity& node : nodes) {
    const double share = static_cast<double>(bytes) * node.threads / threads;
    const std::string who = "node " + std::to_string(node.id);
    if (node.threads <= 0) continue;
    if (!node.memory_allowed) return "this process may not allocate memory on " + who;
    if (share <= static_cast<double>(room(node))) continue;
    return who + " has " + gigabytes(static_cast<double>(node.free_bytes)) + " free and its rows are " + gigabytes(share);
  }
  return "";
}

PlacementChoice bound(uint64_t bytes, const std::vector<NodeCapacity>& nodes) {
  std::vector<Node> readers;
  for (size_t n = 0; n < nodes.size(); ++n)
    if (nodes[n].threads > 0) readers.push_back(static_cast<Node>(n));
  if (readers.size() < 2) return {Action::kLeave, {}, "threads run on one node only: left where it is"};
  const std::string why_not = misfit(bytes, nodes);
  if (why_not.empty()) return {Action::kBind, readers, ""};
  PlacementChoice instead = interleaved(bytes, nodes);
  instead.reason = why_not + (instead.reason.empty() ? ": interleaved instead" : "; " + instead.reason);
  return instead;
}

}  // namespace

std::optional<NumaMode> numa_mode(const std::string& name) {
  if (name == "off") return NumaMode::kOff;
  if (name == "read") return NumaMode::kRead;
  if (name == "interleave") return NumaMode::kInterleave;
  if (name == "bind") return NumaMode::kBind;
  return std::nullopt;
}

PlacementChoice choose_placement(NumaMode mode, uint64_t bytes, const std::vector<NodeCapacity>& nodes) {
  switch (mode) {
    case NumaMode::kOff:
    case NumaMode::kRead: return {};
    case NumaMode::kInterleave: return interleaved(bytes, nodes);
    case NumaMode::kBind: return bound(bytes, nodes);
  }
  return {};
}

Node crowded_node(const PageMap& map, const std::vector<Node>& usable) {
  constexpr uint64_t kSmallest = 2 * (2 << 20);
  if (map.bytes() < kSmallest) return kUnknownNode;
  std::array<uint64_t, kUnknownNode> bytes = {};
  for (const PageMap::Run& run : map.runs())
    if (run.node != kUnknownNode) bytes[run.node] += run.end - run.begin;
  const auto most = std::max_element(bytes.begin(), bytes.end());
  const Node node = static_cast<Node>(most - bytes.begin());
  const bool another = std::any_of(usable.begin(), usable.end(), [&](Node n) { return n != node; });
  return another && *most >= map.bytes() - map.bytes() / 10 ? node : kUnknownNode;
}

}  // namespace ort_hina::plan
