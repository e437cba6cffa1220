#include "ort/numa_windows.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "ort/tensors.h"
#include "plan/row_slices.h"
#include "runtime/memory_policy.h"
#include "runtime/placement.h"
#include "runtime/replacement.h"

namespace ort_hina::ort {
namespace {

using plan::PlacementChoice;

std::string formatted(const char* format, double number) {
  char text[48];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

std::string gigabytes(uint64_t bytes) { return formatted("%.3f GB", static_cast<double>(bytes) / 1e9); }
std::string percent(uint64_t part, uint64_t whole) {
  return formatted("%.1f %%", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

double threads_of(const runtime::NumaNode& node) { return static_cast<double>(node.cpus.size()); }

std::vector<plan::NodeCapacity> capacities(const runtime::Topology& topology) {
  const std::vector<uint64_t> free = runtime::read_free_bytes(topology);
  std::vector<plan::NodeCapacity> nodes;
  for (size_t n = 0; n < free.size(); ++n) {
    const runtime::NumaNode& node = topology.nodes[n];
    nodes.push_back({node.id, free[n], node.memory_allowed, threads_of(node)});
  }
  return nodes;
}

runtime::Replacement bind(void* window, size_t bytes, const std::vector<plan::StoredMatrix>& matrices,
                          const runtime::Topology& topology) {
  std::vector<double> weights;
  for (const runtime::NumaNode& node : topology.nodes) weights.push_back(threads_of(node));
  const uint64_t page = runtime::page_size();
  const plan::PageGrid grid = {page, reinterpret_cast<uintptr_t>(window) % page};
  return runtime::bind(window, bytes, plan::row_slices(matrices, bytes, weights, grid), /*strict=*/true, topology);
}

// Nodes with memory and threads.
std::vector<plan::Node> usable_nodes(const runtime::Topology& topology) {
  std::vector<plan::Node> usable;
  for (size_t n = 0; n < topology.nodes.size(); ++n) {
    const runtime::NumaNode& node = topology.nodes[n];
    if (node.memory_allowed && node.memory_bytes && !node.cpus.empty()) usable.push_back(static_cast<plan::Node>(n));
  }
  return usable;
}

std::string shares(const plan::PageMap& map, const runtime::Topology& topology) {
  std::array<uint64_t, plan::kUnknownNode + 1> bytes = {};
  for (const plan::PageMap::Run& run : map.runs()) bytes[run.node] += run.end - run.begin;
  std::string text;
  for (size_t n = 0; n < bytes.size(); ++n)
    if (bytes[n])
      text += (text.empty() ? "" : ", ") + percent(bytes[n], map.bytes()) +
              (n == plan::kUnknownNode ? " unknown" : " on node " + std::to_string(topology.nodes[n].id));
  return text;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

plan::NumaMode parse_numa_mode(const std::string& text) {
  if (text.empty()) return plan::NumaMode::kRead;
  if (const auto mode = plan::numa_mode(text)) return *mode;
  throw std::invalid_argument(std::string("session config entry ") + kNumaKey +
                              ": expected off, read, interleave or bind, got '" + text + "'");
}

// What is said of one window.
class NumaWindows::Log {
 public:
  Log(NumaWindows* windows, const OrtKernelInfo* info, size_t bytes)
      : windows_(windows), window_(node_name("MoE", info) + "a window of " + gigabytes(bytes) + " of weights ") {
    Ort::ThrowOnError(Ort::GetApi().KernelInfo_GetLogger(info, &session));
  }
  void tell(const std::string& message) const { write(ORT_LOGGING_LEVEL_INFO, message); }
  void warn(Warning kind, const std::string& message) const {
    if (windows_->first(session, kind)) write(ORT_LOGGING_LEVEL_WARNING, message + " (said once)");
  }

  const OrtLogger* session = nullptr;

 private:
  void write(OrtLoggingLevel level, const std::string& message) const {
    Ort::ThrowOnError(Ort::GetApi().Logger_LogMessage(session, level, (window_ + message).c_str(), ORT_FILE, __LINE__, "numa"));
  }
  NumaWindows* const windows_;
  const std::string window_;
};

plan::PageMap NumaWindows::place(const OrtKernelInfo* info, const void* window, size_t bytes,
                                 const std::vector<plan::StoredMatrix>& matrices) {
  if (mode_ == plan::NumaMode::kOff) return {};
  const Log log(this, info, bytes);
  const runtime::Topology& topology = topology_of(log.session);
  if (!topology.multi_node()) return {};
  replace(window, bytes, matrices, topology, log);
  const auto begin = std::chrono::steady_clock::now();
  plan::PageMap map = runtime::query_placement(window, bytes, topology);
  log.tell("lies " + shares(map, topology) + formatted(" (asked in %.1f ms)", 1e3 * seconds_since(begin)));
  judge(map, topology, log);
  return map;
}

const runtime::Topology* NumaWindows::topology(const OrtKernelInfo* info) {
  if (mode_ == plan::NumaMode::kOff) return nullptr;
  const OrtLogger* session = nullptr;
  Ort::ThrowOnError(Ort::GetApi().KernelInfo_GetLogger(info, &session));
  const runtime::Topology& machine = topology_of(session);
  return machine.multi_node() ? &machine : nullptr;
}

const runtime::Topology& NumaWindows::topology_of(const OrtLogger* session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Session& known = sessions_[session];
  // The session's own threads run by now, each with its affinity.
  if (!known.topology) known.topology = &runtime::refreshed_topology();
  return *known.topology;
}

bool NumaWindows::first(const OrtLogger* session, Warning warning) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bool& warned = sessions_[session].warned[warning];
  return !std::exchange(warned, true);
}

void NumaWindows::replace(const void* window, size_t bytes, const std::vector<plan::StoredMatrix>& matrices,
                          const runtime::Topology& topology, const Log& log) {
  const PlacementChoice choice = plan::choose_placement(mode_, bytes, capacities(topology));
  if (!choice.reason.empty()) log.warn(kNotPlaced, "cannot be placed as ort_hina.numa asks: " + choice.reason);
  if (choice.action == PlacementChoice::Action::kLeave) return;
  // Its pages are exchanged, not what is in them.
  void* memory = const_cast<void*>(window);
  const bool bound = choice.action == PlacementChoice::Action::kBind;
  const runtime::Replacement done =
      bound ? bind(memory, bytes, matrices, topology) : runtime::interleave(memory, bytes, choice.nodes, topology);
  if (!done.error.empty()) log.warn(kNotPlaced, "could not be placed as ort_hina.numa asks: " + done.error);
  log.tell((bound ? "was bound to its nodes by rows: " : "was interleaved: ") + gigabytes(done.bytes) +
           formatted(" in %.3f s", done.seconds) + ", with copies of " + gigabytes(done.copied_bytes) + " of the file's pages");
}

void NumaWindows::judge(const plan::PageMap& map, const runtime::Topology& topology, const Log& log) {
  if (map.bytes() && map.bytes_on(plan::kUnknownNode) == map.bytes())
    log.warn(kUnknown, "is read without regard to memory nodes, since the kernel does not say where it lies (containers often "
                       "forbid move_pages and mbind: --cap-add SYS_NICE permits them)");
  const std::vector<plan::Node> usable = usable_nodes(topology);
  const plan::Node crowded = plan::crowded_node(map, usable);
  if (crowded == plan::kUnknownNode) return;
  std::string ids;
  for (plan::Node n : usable) ids += (ids.empty() ? "" : ", ") + std::to_string(topology.nodes[n].id);
  log.warn(kCrowded, "lies " + percent(map.bytes_on(crowded), map.bytes()) + " on memory node " +
                         std::to_string(topology.nodes[crowded].id) + ", while this process may use nodes " + ids +
                         ": most threads read it from afar. Set the session config entry ort_hina.numa=interleave, which "
                         "spreads the pages at the cost of a copy; or drop the page cache (sync; "
                         "echo 1 >/proc/sys/vm/drop_caches) and start under numactl --interleave=all");
}

}  // namespace ort_hina::ort
