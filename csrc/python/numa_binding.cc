// Memory nodes, and where memory lies. Nodes are indices of topology()["nodes"]; None stands for an unknown one.
#include <algorithm>

#include "plan/placement_choice.h"
#include "plan/row_slices.h"
#include "python/bindings.h"
#include "runtime/memory_policy.h"
#include "runtime/placement.h"
#include "runtime/replacement.h"
#include "runtime/resident_pages.h"
#include "runtime/topology.h"

namespace ort_hina::python {
namespace {

using plan::kUnknownNode;

py::object node_object(plan::Node node) { return node == kUnknownNode ? py::object(py::none()) : py::object(py::int_(node)); }

std::vector<plan::Node> node_list(const std::vector<size_t>& numbers) {
  std::vector<plan::Node> nodes;
  for (size_t n : numbers) {
    if (n >= kUnknownNode) throw std::invalid_argument("node " + std::to_string(n) + ": expected an index below 255");
    nodes.push_back(static_cast<plan::Node>(n));
  }
  return nodes;
}

py::dict described(const runtime::NumaNode& node) {
  py::dict d;
  d["id"] = node.id;
  d["cpus"] = node.cpus;
  d["memory_allowed"] = node.memory_allowed;
  d["memory_bytes"] = node.memory_bytes;
  d["free_bytes"] = node.free_bytes;
  d["distances"] = node.distances;
  return d;
}

py::dict topology(const std::string& sysfs, const std::string& status, std::vector<uint32_t> cpus) {
  std::sort(cpus.begin(), cpus.end());
  const runtime::Topology found = runtime::read_topology({sysfs, status, cpus});
  py::list nodes, node_of_cpu;
  for (const runtime::NumaNode& node : found.nodes) nodes.append(described(node));
  for (plan::Node node : found.node_of_cpu) node_of_cpu.append(node_object(node));
  py::dict d;
  d["nodes"] = nodes;
  d["node_of_cpu"] = node_of_cpu;
  d["cores"] = runtime::physical_cores(found.cpus, sysfs);
  d["multi_node"] = found.multi_node();
  return d;
}

py::list runs_of(const plan::PageMap& map) {
  py::list runs;
  for (const plan::PageMap::Run& run : map.runs()) runs.append(py::make_tuple(run.begin, run.end, node_object(run.node)));
  return runs;
}

py::list query_address(uintptr_t address, size_t bytes) {
  plan::PageMap map;
  {
    const py::gil_scoped_release unlocked;
    map = runtime::query_placement(reinterpret_cast<const void*>(address), bytes, runtime::refreshed_topology());
  }
  return runs_of(map);
}

py::list query_buffer(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  return query_address(reinterpret_cast<uintptr_t>(info.ptr), static_cast<size_t>(info.size * info.itemsize));
}

py::list resident_pages(uintptr_t address, size_t bytes) {
  py::list runs;
  for (const auto& [begin, end] : runtime::resident_pages(reinterpret_cast<const void*>(address), bytes))
    runs.append(py::make_tuple(begin, end));
  return runs;
}

// (begin, rows, columns, element, row_stride) each.
using MatrixTuple = std::tuple<uint64_t, uint32_t, uint32_t, uint32_t, uint64_t>;

std::vector<std::tuple<uint64_t, uint64_t, size_t>> row_slices(const std::vector<MatrixTuple>& matrices, uint64_t bytes,
                                                               const std::vector<double>& weights, uint64_t page,
                                                               uint64_t phase) {
  std::vector<plan::StoredMatrix> stored;
  for (const auto& [begin, rows, columns, element, stride] : matrices) stored.push_back({begin, rows, columns, element, stride});
  std::vector<std::tuple<uint64_t, uint64_t, size_t>> slices;
  for (const plan::NodeSlice& s : plan::row_slices(stored, bytes, weights, {page ? page : runtime::page_size(), phase}))
    slices.emplace_back(s.begin, s.end, s.node);
  return slices;
}

plan::NumaMode mode_by_name(const std::string& name) {
  if (const auto mode = plan::numa_mode(name)) return *mode;
  throw std::invalid_argument("mode: expected off, read, interleave or bind, got '" + name + "'");
}

const char* name_of_action(plan::PlacementChoice::Action action) {
  switch (action) {
    case plan::PlacementChoice::Action::kLeave: return "leave";
    case plan::PlacementChoice::Action::kInterleave: return "interleave";
    case plan::PlacementChoice::Action::kBind: return "bind";
  }
  return "";
}

// (id, free_bytes, memory_allowed, threads) each.
using CapacityTuple = std::tuple<uint32_t, uint64_t, bool, double>;

py::dict placement_choice(const std::string& mode, uint64_t bytes, const std::vector<CapacityTuple>& nodes) {
  std::vector<plan::NodeCapacity> capacities;
  for (const auto& [id, free, allowed, threads] : nodes) capacities.push_back({id, free, allowed, threads});
  const plan::PlacementChoice choice = plan::choose_placement(mode_by_name(mode), bytes, capacities);
  py::dict d;
  d["action"] = name_of_action(choice.action);
  d["nodes"] = std::vector<size_t>(choice.nodes.begin(), choice.nodes.end());
  d["reason"] = choice.reason;
  return d;
}

py::object crowded_node(const std::vector<std::pair<uint64_t, py::object>>& runs, const std::vector<size_t>& usable) {
  plan::PageMap map;
  for (const auto& [bytes, node] : runs)
    map.append(bytes, node.is_none() ? kUnknownNode : node_list({node.cast<size_t>()}).front());
  return node_object(plan::crowded_node(map, node_list(usable)));
}

template <typename Replace>
py::dict replaced(const Replace& replace) {
  runtime::Replacement done;
  {
    const py::gil_scoped_release unlocked;
    done = replace();
  }
  py::dict d;
  d["error"] = done.error;
  d["bytes"] = done.bytes;
  d["copied_bytes"] = done.copied_bytes;
  d["seconds"] = done.seconds;
  return d;
}

py::dict interleave(uintptr_t address, size_t bytes, const std::vector<size_t>& nodes) {
  const std::vector<plan::Node> listed = node_list(nodes);
  return replaced(
      [&] { return runtime::interleave(reinterpret_cast<void*>(address), bytes, listed, runtime::refreshed_topology()); });
}

py::dict bind(uintptr_t address, size_t bytes, const std::vector<std::tuple<uint64_t, uint64_t, size_t>>& slices, bool strict) {
  std::vector<plan::NodeSlice> listed;
  for (const auto& [begin, end, node] : slices) listed.push_back({begin, end, node_list({node}).front()});
  return replaced(
      [&] { return runtime::bind(reinterpret_cast<void*>(address), bytes, listed, strict, runtime::refreshed_topology()); });
}

}  // namespace

void bind_numa(py::module_& m) {
  m.def("topology", &topology, py::arg("sysfs") = "/sys", py::arg("status") = "/proc/self/status",
        py::arg("cpus") = std::vector<uint32_t>{},
        "nodes, node_of_cpu, cores (the CPUs of each) and multi_node, of the CPUs that this process (or `cpus`) may use.");
  m.def("current_node", [] { return node_object(runtime::current_node()); }, "The node whose CPU runs the caller now.");
  m.def("query_placement", &query_address, py::arg("address"), py::arg("bytes"),
        "Runs (begin, end, node) of the bytes from an address of readable memory.");
  m.def("query_placement", &query_buffer, py::arg("buffer"));
  m.def("resident_pages", &resident_pages, py::arg("address"), py::arg("bytes"),
        "Runs (begin, end) of the bytes from an address of a file mapping that are in memory now. Nothing is read.");
  m.def("row_slices", &row_slices, py::arg("matrices"), py::arg("bytes"), py::arg("weights"), py::arg("page") = 0,
        py::arg("phase") = 0,
        "Slices (begin, end, node); matrices: (begin, rows, columns, element, row_stride) each; page 0: the system's.");
  m.def("placement_choice", &placement_choice, py::arg("mode"), py::arg("bytes"), py::arg("nodes"),
        "action, nodes and reason; nodes: (id, free_bytes, memory_allowed, threads) each.");
  m.def("crowded_node", &crowded_node, py::arg("runs"), py::arg("usable"),
        "The node that holds nearly all, or None; runs: (bytes, node) each.");
  m.def("interleave", &interleave, py::arg("address"), py::arg("bytes"), py::arg("nodes"),
        "Re-places the whole pages of a range: error (empty: none), bytes, copied_bytes, seconds.");
  m.def("bind", &bind, py::arg("address"), py::arg("bytes"), py::arg("slices"), py::arg("strict") = true,
        "As interleave; slices: (begin, end, node) each.");
}

}  // namespace ort_hina::python
