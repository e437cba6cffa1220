// Each part of the module `_native`.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "kernels/types.h"
#include "plan/page_map.h"
#include "runtime/cpu.h"
#include "runtime/node_claims.h"

namespace ort_hina::python {

namespace py = pybind11;

void bind_attention(py::module_& m);
void bind_moe(py::module_& m);
void bind_router(py::module_& m);
void bind_kernels(py::module_& m);
void bind_node_plan(py::module_& m);
void bind_numa(py::module_& m);
void bind_plan(py::module_& m);
void bind_yardsticks(py::module_& m);

inline DataType data_type(const std::string& name) {
  for (DataType t : {DataType::kF32, DataType::kF16, DataType::kBF16})
    if (name == name_of(t)) return t;
  throw std::invalid_argument("element type: expected float, float16 or bfloat16, got '" + name + "'");
}

// An available level by name; empty: as chosen by the environment and the CPU.
inline Isa isa_by_name(const std::string& name) {
  if (name.empty()) return runtime::choose_isa().isa;
  for (const runtime::IsaLevel& level : runtime::isa_levels())
    if (name == name_of(level.isa)) {
      if (level.available) return level.isa;
      throw std::invalid_argument("level " + name + ": " + level.reason);
    }
  throw std::invalid_argument("unknown level '" + name + "'");
}

// A page map from its runs: (bytes, node), node None where that is not known.
using Runs = std::vector<std::pair<uint64_t, std::optional<uint32_t>>>;
plan::PageMap page_map(const Runs& runs);
py::object node_or_none(plan::Node node);
// A machine of several nodes that a test makes up: `nodes`, `distances` (20 if absent), and `threads`, the node of each
// participant of a region.
runtime::ThreadNodes made_up_threads(const py::dict& d);

// Arrays come as their bytes, since NumPy has no bfloat16; the types are named beside them.
using Bytes = py::array_t<uint8_t, py::array::c_style>;

}  // namespace ort_hina::python
