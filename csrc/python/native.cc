// The operators and kernels on NumPy arrays, without ONNX Runtime: for tests and benchmarks.
#include <array>
#include <map>

#include "python/bindings.h"

namespace ort_hina::python {
namespace {

py::list described(const std::vector<runtime::IsaLevel>& levels) {
  py::list list;
  for (const runtime::IsaLevel& level : levels) {
    py::dict d;
    d["name"] = name_of(level.isa);
    d["available"] = level.available;
    d["reason"] = level.reason;
    list.append(d);
  }
  return list;
}

py::list isa_levels() { return described(runtime::isa_levels()); }

#if defined(__x86_64__)
using CpuidTable = std::map<std::pair<uint32_t, uint32_t>, std::array<uint32_t, 4>>;

py::list detect_levels(const CpuidTable& cpuid, uint64_t xcr0, int permission) {
  const auto registers = [&](uint32_t leaf, uint32_t subleaf) {
    const auto found = cpuid.find({leaf, subleaf});
    if (found == cpuid.end()) return runtime::CpuidRegisters{};
    const auto& [a, b, c, d] = found->second;
    return runtime::CpuidRegisters{a, b, c, d};
  };
  return described(runtime::x86_levels({registers, [&] { return xcr0; }, [&] { return permission; }}));
}
#endif

py::dict chosen_isa() {
  const runtime::IsaChoice choice = runtime::choose_isa();
  py::dict d;
  d["name"] = name_of(choice.isa);
  d["reason"] = choice.reason;
  return d;
}

}  // namespace
}  // namespace ort_hina::python

PYBIND11_MODULE(_native, m) {
  using namespace ort_hina::python;
  m.doc() = "ort_hina's operators and kernels on NumPy arrays.";
  m.def("isa_levels", &isa_levels, "Every instruction level of this build, best first: name, available, reason.");
#if defined(__x86_64__)
  m.def("detect_levels", &detect_levels, py::arg("cpuid"), py::arg("xcr0"), py::arg("permission"),
        "The levels of an x86-64 CPU with these registers, XCR0 and answer (errno) to the request for AMX tiles.");
#endif
  m.def("chosen_isa", &chosen_isa,
        "The level that operators use, and why. ValueError where ORT_HINA_ISA names one that is unknown or lacking.");
  m.def("usable_threads", &ort_hina::runtime::usable_threads, "Threads that this process may run on at once.");
  bind_attention(m);
  bind_moe(m);
  bind_router(m);
  bind_kernels(m);
  bind_node_plan(m);
  bind_numa(m);
  bind_plan(m);
  bind_yardsticks(m);
}
