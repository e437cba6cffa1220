#include "runtime/topology.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>
#include <sstream>

#include "runtime/allowed_cpus.h"
#include "runtime/system_files.h"

namespace ort_hina::runtime {
namespace {

using plan::kUnknownNode;

constexpr uint32_t kOwnDistance = 10, kOtherDistance = 20;  // what firmware says that says nothing in particular

std::vector<uint32_t> intersection(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  std::vector<uint32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// The online ones of `cpus`; all where the system does not say.
std::vector<uint32_t> online(const std::vector<uint32_t>& cpus, const std::string& sysfs) {
  const std::string text = read_text(sysfs + "/devices/system/cpu/online");
  return text.empty() ? cpus : intersection(cpus, parse_numbers(text));
}

std::string node_folder(const std::string& sysfs, uint32_t id) {
  return sysfs + "/devices/system/node/node" + std::to_string(id);
}

// Of a line "Node 0 MemFree:   123 kB"; 0 where there is none.
uint64_t meminfo_bytes(const std::string& meminfo, uint32_t id, const char* what) {
  const std::string value = line_value(meminfo, "Node " + std::to_string(id) + " " + what + ":");
  return std::strtoull(value.c_str(), nullptr, 10) * 1024;
}

uint64_t free_bytes(const std::string& meminfo, uint32_t id) {
  uint64_t bytes = 0;
  for (const char* what : {"MemFree", "Active(file)", "Inactive(file)"}) bytes += meminfo_bytes(meminfo, id, what);
  return bytes;
}

// The kernel writes one number for each online node, in the order of the ids.
std::vector<uint32_t> read_distances(const std::string& folder, size_t self, size_t nodes) {
  std::vector<uint32_t> distances(nodes, kOtherDistance);
  distances[self] = kOwnDistance;
  std::istringstream text(read_text(folder + "/distance"));
  uint32_t distance = 0;
  for (size_t i = 0; i < nodes && text >> distance; ++i) distances[i] = distance;
  return distances;
}

Topology one_node(const std::vector<uint32_t>& cpus) {
  Topology topology;
  topology.nodes.push_back({0, cpus, true, 0, 0, {kOwnDistance}});
  topology.cpus = cpus;
  if (!cpus.empty()) topology.node_of_cpu.assign(cpus.back() + 1, 0);
  return topology;
}

void add_node(Topology* topology, const TopologySource& source, uint32_t id) {
  const std::string folder = node_folder(source.sysfs, id);
  const std::vector<uint32_t> cpus = parse_numbers(read_text(folder + "/cpulist"));
  if (!cpus.empty() && topology->node_of_cpu.size() <= cpus.back())
    topology->node_of_cpu.resize(cpus.back() + 1, kUnknownNode);
  for (uint32_t cpu : cpus) topology->node_of_cpu[cpu] = static_cast<plan::Node>(topology->nodes.size());
  const std::string meminfo = read_text(folder + "/meminfo");
  topology->nodes.push_back({id, intersection(cpus, topology->cpus), true, meminfo_bytes(meminfo, id, "MemTotal"),
                             free_bytes(meminfo, id), {}});
}

// All may be used where the system does not say.
void read_allowed_memory(Topology* topology, const std::string& status) {
  const std::string text = line_value(read_text(status), "Mems_allowed_list:");
  if (text.empty()) return;
  const std::vector<uint32_t> ids = parse_numbers(text);
  for (NumaNode& node : topology->nodes) node.memory_allowed = std::binary_search(ids.begin(), ids.end(), node.id);
}

// Whatever does not change by itself.
bool same(const Topology& a, const Topology& b) {
  const auto alike = [](const NumaNode& m, const NumaNode& n) {
    return m.id == n.id && m.cpus == n.cpus && m.memory_allowed == n.memory_allowed;
  };
  return a.cpus == b.cpus && a.node_of_cpu == b.node_of_cpu &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), alike);
}

std::atomic<const Topology*> current{nullptr};

}  // namespace

bool Topology::multi_node() const {
  return std::count_if(nodes.begin(), nodes.end(), [](const NumaNode& n) { return !n.cpus.empty(); }) > 1;
}

plan::Node Topology::node_of_id(uint32_t id) const {
  for (size_t n = 0; n < nodes.size(); ++n)
    if (nodes[n].id == id) return static_cast<plan::Node>(n);
  return kUnknownNode;
}

Topology read_topology(const TopologySource& source) {
  const std::vector<uint32_t> cpus = online(source.cpus.empty() ? allowed_cpus() : source.cpus, source.sysfs);
  std::vector<uint32_t> ids = parse_numbers(read_text(source.sysfs + "/devices/system/node/online"));
  if (ids.empty()) return one_node(cpus);
  ids.resize(std::min<size_t>(ids.size(), kUnknownNode));
  Topology topology;
  topology.cpus = cpus;
  for (uint32_t id : ids) add_node(&topology, source, id);
  for (size_t n = 0; n < ids.size(); ++n)
    topology.nodes[n].distances = read_distances(node_folder(source.sysfs, ids[n]), n, ids.size());
  read_allowed_memory(&topology, source.status);
  return topology;
}

std::vector<uint64_t> read_free_bytes(const Topology& topology, const std::string& sysfs) {
  std::vector<uint64_t> bytes;
  for (const NumaNode& node : topology.nodes)
    bytes.push_back(free_bytes(read_text(node_folder(sysfs, node.id) + "/meminfo"), node.id));
  return bytes;
}

std::vector<std::vector<uint32_t>> physical_cores(const std::vector<uint32_t>& cpus, const std::string& sysfs) {
  std::vector<std::vector<uint32_t>> cores;
  std::vector<uint32_t> left = cpus;
  while (!left.empty()) {
    const std::string folder = sysfs + "/devices/system/cpu/cpu" + std::to_string(left.front());
    std::vector<uint32_t> core = intersection(left, parse_numbers(read_text(folder + "/topology/thread_siblings_list")));
    if (core.empty() || core.front() != left.front()) core = {left.front()};  // the system does not say
    std::vector<uint32_t> rest;
    std::set_difference(left.begin(), left.end(), core.begin(), core.end(), std::back_inserter(rest));
    left = std::move(rest);
    cores.push_back(std::move(core));
  }
  return cores;
}

const Topology& topology() {
  const Topology* known = current.load(std::memory_order_acquire);
  return known ? *known : refreshed_topology();
}

const Topology& refreshed_topology() {
  // Never destroyed: threads may ask while the process ends.
  static std::mutex& mutex = *new std::mutex;
  static std::list<Topology>& kept = *new std::list<Topology>;
  const std::lock_guard<std::mutex> lock(mutex);
  const Topology now = read_topology({});
  auto found = std::find_if(kept.begin(), kept.end(), [&now](const Topology& known) { return same(known, now); });
  if (found == kept.end()) found = kept.insert(found, now);
  current.store(&*found, std::memory_order_release);
  return *found;
}

plan::Node current_node() {
  const int cpu = sched_getcpu();
  const std::vector<plan::Node>& nodes = topology().node_of_cpu;
  return cpu >= 0 && static_cast<size_t>(cpu) < nodes.size() ? nodes[static_cast<size_t>(cpu)] : kUnknownNode;
}

}  // namespace ort_hina::runtime
