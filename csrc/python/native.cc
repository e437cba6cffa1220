// The operators and kernels on NumPy arrays, without ONNX Runtime: for tests and benchmarks.
#include "python/bindings.h"

namespace ort_hina::python {
namespace {

py::list isa_levels() {
  py::list levels;
  for (const runtime::IsaLevel& level : runtime::isa_levels()) {
    py::dict d;
    d["name"] = name_of(level.isa);
    d["available"] = level.available;
    d["reason"] = level.reason;
    levels.append(d);
  }
  return levels;
}

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
  m.def("chosen_isa", &chosen_isa,
        "The level that operators use, and why. ValueError where ORT_HINA_ISA names one that is unknown or lacking.");
  m.def("usable_threads", &ort_hina::runtime::usable_threads, "Threads that this process may run on at once.");
  bind_moe(m);
  bind_kernels(m);
  bind_plan(m);
  bind_yardsticks(m);
}
