#include "operators/router.h"
#include "python/bindings.h"
#include "python/std_pool.h"

namespace ort_hina::python {
namespace {

template <typename T>
void take(const py::dict& attributes, const char* name, T* value) {
  if (attributes.contains(name)) *value = attributes[name].cast<T>();
}

operators::RouterAttributes router_attributes(const py::dict& a) {
  operators::RouterAttributes r;
  take(a, "k", &r.k);
  take(a, "score", &r.score);
  take(a, "num_groups", &r.num_groups);
  take(a, "top_groups", &r.top_groups);
  take(a, "group_score", &r.group_score);
  take(a, "masked_score", &r.masked_score);
  take(a, "weight_function", &r.weight_function);
  take(a, "normalize", &r.normalize);
  take(a, "normalize_epsilon", &r.normalize_epsilon);
  take(a, "normalize_min", &r.normalize_min);
  take(a, "scale", &r.scale);
  take(a, "jitter", &r.jitter);
  return r;
}

// A node, ready to run.
class NativeRouter {
 public:
  NativeRouter(const py::dict& attributes, const std::string& isa) : router_(router_attributes(attributes), isa_by_name(isa)) {}

  // The bias may be empty: none.
  py::tuple run(const Bytes& logits, const std::string& type, size_t experts, const Bytes& bias, const std::string& bias_type,
                size_t threads) const {
    operators::RouterInputs in = {};
    in.logits_type = data_type(type);
    in.bias_type = data_type(bias_type);
    in.experts = experts;
    if (threads == 0) throw std::invalid_argument("threads: expected at least 1");
    const size_t row_bytes = experts * size_of(in.logits_type), bytes = static_cast<size_t>(logits.size());
    if (row_bytes == 0 || bytes % row_bytes) throw std::invalid_argument("logits: expected whole rows of `experts` elements");
    const size_t bias_bytes = static_cast<size_t>(bias.size());
    if (bias_bytes && bias_bytes != experts * size_of(in.bias_type))
      throw std::invalid_argument("bias: expected `experts` elements, or none");
    in.tokens = bytes / row_bytes;
    in.logits = logits.data();
    in.bias = bias_bytes ? bias.data() : nullptr;
    router_.check(in);
    const std::vector<size_t> shape = {in.tokens, router_.k()};
    py::array_t<int64_t> ids(shape);
    py::array_t<float> weights(shape);
    in.ids = ids.mutable_data();
    in.weights = weights.mutable_data();
    const runtime::Pool pool = {&threads, std_parallel_for, threads};
    {
      py::gil_scoped_release release;
      router_.run(in, pool);
    }
    return py::make_tuple(ids, weights);
  }

 private:
  operators::Router router_;
};

}  // namespace

void bind_router(py::module_& m) {
  py::class_<NativeRouter>(m, "Router", "One Router node (docs/operators.md).")
      .def(py::init<const py::dict&, const std::string&>(), py::arg("attributes"), py::arg("isa") = "")
      .def("run", &NativeRouter::run, py::arg("logits"), py::arg("type"), py::arg("experts"), py::arg("bias") = Bytes(0),
           py::arg("bias_type") = "float", py::arg("threads") = 1,
           "expert_ids (int64) and expert_weights (float32), [T, k]. logits and bias are uint8 views of their elements.");
}

}  // namespace ort_hina::python
