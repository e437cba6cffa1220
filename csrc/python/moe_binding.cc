#include <chrono>
#include <memory>
#include <optional>

#include "operators/moe.h"
#include "python/bindings.h"
#include "python/std_pool.h"

namespace ort_hina::python {
namespace {

std::vector<int64_t> integers(const py::dict& attributes, const std::string& name) {
  return attributes.contains(name) ? attributes[name.c_str()].cast<std::vector<int64_t>>() : std::vector<int64_t>{};
}

template <typename T>
void take(const py::dict& attributes, const std::string& name, T* value) {
  if (attributes.contains(name)) *value = attributes[name.c_str()].cast<T>();
}

operators::MatrixAttributes matrix(const py::dict& a, const std::string& role) {
  operators::MatrixAttributes m;
  m.offsets = integers(a, role + "_offsets");
  m.windows = integers(a, role + "_windows");
  m.strides = integers(a, role + "_strides");
  m.bias_offsets = integers(a, role + "_bias_offsets");
  m.bias_windows = integers(a, role + "_bias_windows");
  take(a, role + "_bias_stride", &m.bias_stride);
  return m;
}

operators::MoeAttributes moe_attributes(const py::dict& a) {
  operators::MoeAttributes attributes;
  take(a, "num_experts", &attributes.num_experts);
  take(a, "hidden_size", &attributes.hidden_size);
  take(a, "intermediate_size", &attributes.intermediate_size);
  attributes.gate = matrix(a, "gate");
  attributes.up = matrix(a, "up");
  attributes.down = matrix(a, "down");
  take(a, "activation", &attributes.activation);
  take(a, "activation_alpha", &attributes.activation_alpha);
  take(a, "activation_beta", &attributes.activation_beta);
  take(a, "swiglu_limit", &attributes.swiglu_limit);
  take(a, "weight_on", &attributes.weight_on);
  take(a, "missing_experts", &attributes.missing_experts);
  attributes.sigmoid_gate.offsets = integers(a, "sigmoid_gate_offsets");
  attributes.sigmoid_gate.windows = integers(a, "sigmoid_gate_windows");
  take(a, "sigmoid_gate_stride", &attributes.sigmoid_gate.stride);
  return attributes;
}

// A machine that a test makes up, and the maps of the windows.
struct MadeUpNodes {
  runtime::ThreadNodes threads;
  operators::Placement placement;
  explicit MadeUpNodes(const py::dict& d) : threads(made_up_threads(d)) {
    for (const Runs& runs : d["maps"].cast<std::vector<Runs>>()) placement.maps.push_back(page_map(runs));
    placement.threads = &threads;
    placement.thread_count = d.contains("thread_count") ? d["thread_count"].cast<size_t>() : 64;
  }
};

// A node and its windows, ready to run.
class NativeMoe {
 public:
  NativeMoe(const py::dict& attributes, std::vector<std::pair<Bytes, std::string>> windows, const std::string& isa,
            bool bf16_compute, const std::optional<py::dict>& numa)
      : windows_(std::move(windows)) {
    std::vector<operators::Window> views;
    for (const auto& [bytes, type] : windows_)
      views.push_back({bytes.data(), static_cast<size_t>(bytes.size()), data_type(type)});
    if (numa) nodes_ = std::make_unique<MadeUpNodes>(*numa);
    if (nodes_ && nodes_->placement.maps.size() != views.size())
      throw std::invalid_argument("numa: expected a map for each window");
    moe_ = std::make_unique<operators::Moe>(moe_attributes(attributes), views, isa_by_name(isa), bf16_compute);
    if (!nodes_) return;
    const auto begin = std::chrono::steady_clock::now();
    moe_->share_out(views, nodes_->placement);
    share_out_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double share_out_seconds() const { return share_out_seconds_; }

  Bytes run(const Bytes& x, const std::string& x_type, const std::optional<py::array>& ids,
            const std::optional<Bytes>& weights, const std::string& weights_type, size_t threads,
            const std::optional<Bytes>& addend) const {
    operators::MoeInputs in = {};
    in.x_type = data_type(x_type);
    in.weights_type = data_type(weights_type);
    const size_t row_bytes = moe_->config().hidden * size_of(in.x_type);
    in.tokens = static_cast<size_t>(x.size()) / row_bytes;
    in.k = moe_->config().num_experts;
    if (ids) read_ids(*ids, &in);
    if (static_cast<size_t>(x.size()) != in.tokens * row_bytes)
      throw std::invalid_argument("x: expected tokens × hidden_size elements");
    if (weights && static_cast<size_t>(weights->size()) != in.tokens * in.k * size_of(in.weights_type))
      throw std::invalid_argument(std::string("weights: expected ") +
                                  (ids ? "as many elements as ids" : "tokens × experts elements"));
    if (addend && addend->size() != x.size()) throw std::invalid_argument("addend: expected as many elements as x");
    if (threads == 0) throw std::invalid_argument("threads: expected at least 1");
    Bytes y(std::vector<size_t>{in.tokens * row_bytes});
    in.x = x.data();
    in.weights = weights ? weights->data() : nullptr;
    in.addend = addend ? addend->data() : nullptr;
    in.y = y.mutable_data();

    const runtime::Pool pool = {&threads, std_parallel_for, threads};
    py::gil_scoped_release release;
    std::unique_ptr<uint8_t[]> memory;
    moe_->run(in, pool, [&memory](size_t bytes) {
      memory.reset(new uint8_t[bytes + 64]);
      return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
    });
    return y;
  }

 private:
  static void read_ids(const py::array& ids, operators::MoeInputs* in) {
    if (ids.ndim() != 2) throw std::invalid_argument("ids: expected rank 2");
    in->ids_are_64_bit = py::isinstance<py::array_t<int64_t, py::array::c_style>>(ids);
    if (!in->ids_are_64_bit && !py::isinstance<py::array_t<int32_t, py::array::c_style>>(ids))
      throw std::invalid_argument("ids: expected a contiguous int32 or int64 array");
    in->tokens = static_cast<size_t>(ids.shape(0));
    in->k = static_cast<size_t>(ids.shape(1));
    in->ids = ids.data();
  }

  std::vector<std::pair<Bytes, std::string>> windows_;
  std::unique_ptr<MadeUpNodes> nodes_;
  std::unique_ptr<operators::Moe> moe_;
  double share_out_seconds_ = 0;
};

}  // namespace

void bind_moe(py::module_& m) {
  py::class_<NativeMoe>(m, "Moe", "One MoE node (docs/operators.md). The windows are referenced, not copied.")
      .def(py::init<const py::dict&, std::vector<std::pair<Bytes, std::string>>, const std::string&, bool,
                    const std::optional<py::dict>&>(),
           py::arg("attributes"), py::arg("windows"), py::arg("isa") = "", py::arg("bf16_compute") = false,
           py::arg("numa") = py::none())
      .def_property_readonly("share_out_seconds", &NativeMoe::share_out_seconds, "What planning for `numa` took.")
      .def("run", &NativeMoe::run, py::arg("x"), py::arg("x_type"), py::arg("ids") = py::none(),
           py::arg("weights") = py::none(), py::arg("weights_type") = "float", py::arg("threads") = 1,
           py::arg("addend") = py::none(),
           "Bytes of Y. x, weights and addend are uint8 views of their elements; ids is an int32 or int64 array [T, k]. "
           "Without ids every token goes to every expert; without weights all are 1.");
}

}  // namespace ort_hina::python
