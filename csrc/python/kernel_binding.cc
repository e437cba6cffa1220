#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/table.h"
#include "python/bindings.h"

namespace ort_hina::python {
namespace {

using F32 = py::array_t<float, py::array::c_style | py::array::forcecast>;

py::list kernel_table() {
  py::list rows;
  for (const kernels::MatmulKernel* kernel : kernels::table()) {
    py::dict d;
    d["name"] = kernel->name;
    d["isa"] = name_of(kernel->isa);
    d["activations"] = name_of(kernel->activations);
    d["weights"] = name_of(kernel->weights);
    d["layout"] = name_of(kernel->layout);
    d["cut"] = kernel->cut == kernels::Cut::kN ? "n" : "k";
    d["n_step"] = kernel->n_step;
    rows.append(d);
  }
  return rows;
}

const kernels::MatmulKernel& kernel_by_name(const std::string& name) {
  for (const kernels::MatmulKernel* kernel : kernels::table())
    if (name == kernel->name) return *kernel;
  throw std::invalid_argument("no kernel is called '" + name + "'");
}

std::string pick(const std::string& isa, const std::string& weights, const std::string& layout, size_t m, size_t n, size_t k,
                 bool bf16_compute) {
  const Layout l = layout == name_of(Layout::kNK) ? Layout::kNK : Layout::kKN;
  const Isa level = isa_by_name(isa);
  const DataType type = data_type(weights);
  return kernels::cheapest(kernels::candidates(level, type, l, kernels::activations_for(level, type, bf16_compute)), m, n, k).name;
}

using Aligned = std::unique_ptr<uint8_t, decltype(&std::free)>;

// No larger than asked for, rounded up to cache lines, so that a memory checker sees an excess.
Aligned aligned(size_t bytes) {
  return Aligned(static_cast<uint8_t*>(bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr), &std::free);
}

// Rows of f32 as blocks of bf16.
Aligned pack_blocks(const kernels::MatmulKernel& kernel, const F32& a, size_t lda) {
  using kernels::kBlockTokens;
  const size_t m = static_cast<size_t>(a.shape(0)), k = static_cast<size_t>(a.shape(1));
  const bool rows_only = kernel.lanes_from > kBlockTokens;
  Aligned blocks = aligned((rows_only ? m : (m + kBlockTokens - 1) / kBlockTokens * kBlockTokens) * lda * 2);
  for (size_t t = 0; t < m; t += kBlockTokens) {
    const size_t count = std::min(kBlockTokens, m - t);
    const void* rows[kBlockTokens];
    for (size_t i = 0; i < count; ++i) rows[i] = a.data() + (t + i) * k;
    kernels::vector_ops(kernel.isa).pack({rows, DataType::kF32, nullptr, count, k, kernels::padded_inputs(k),
                                          reinterpret_cast<uint16_t*>(blocks.get()) + t * lda, lda, count >= kernel.lanes_from});
  }
  return blocks;
}

// C[m,n] = A[m,k] · W with the weights `offset` bytes into `w`.
F32 matmul(const std::string& name, const F32& a, const Bytes& w, size_t offset, size_t ldw, size_t n) {
  const kernels::MatmulKernel& kernel = kernel_by_name(name);
  const Isa level = isa_by_name(name_of(kernel.isa));  // throws where this CPU lacks the level
  if (a.ndim() != 2) throw std::invalid_argument("a: expected rank 2");
  const size_t m = static_cast<size_t>(a.shape(0)), k = static_cast<size_t>(a.shape(1));
  const bool nk = kernel.layout == Layout::kNK;
  const size_t last = nk ? (n - 1) * ldw + k : (k - 1) * ldw + n;
  if (!n || !k || offset + last * size_of(kernel.weights) > static_cast<size_t>(w.size()))
    throw std::invalid_argument("w: too small");
  F32 c({m, n});
  const Aligned scratch = aligned(kernel.scratch_bytes(m, n));
  const bool blocks = kernel.activations == DataType::kBF16;
  const size_t lda = blocks ? kernels::padded_inputs(k) : k;
  const Aligned packed = blocks ? pack_blocks(kernel, a, lda) : aligned(0);
  const void* activations = blocks ? static_cast<const void*>(packed.get()) : a.data();
  const kernels::TileState* tiles = kernels::tile_state(level);
  alignas(64) uint8_t configuration[64];
  if (tiles) tiles->save(configuration);
  kernel.run({activations, lda, w.data() + offset, ldw, c.mutable_data(), n, m, n, k, scratch.get(), nullptr, false});
  if (tiles) tiles->restore(configuration);
  return c;
}

ActivationSpec activation_spec(const std::string& kind, float alpha, float beta, float limit) {
  const std::pair<const char*, Activation> names[] = {
      {"silu", Activation::kSilu},         {"gelu", Activation::kGelu}, {"gelu_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},         {"identity", Activation::kIdentity}, {"swiglu_oai", Activation::kSwigluOai}};
  for (const auto& [name, value] : names)
    if (kind == name) return {value, alpha, beta, limit};
  throw std::invalid_argument("unknown activation '" + kind + "'");
}

F32 activate(const std::string& isa, const std::string& kind, const F32& gate, const F32& up, float alpha, float beta,
             float limit) {
  if (gate.size() != up.size()) throw std::invalid_argument("gate and up: expected one size");
  const size_t n = static_cast<size_t>(gate.size());
  F32 h(std::vector<size_t>{n});
  kernels::vector_ops(isa_by_name(isa)).activate({gate.data(), up.data(), n, 1, nullptr, nullptr, h.mutable_data(), n, 1, n,
                                                  activation_spec(kind, alpha, beta, limit)});
  return h;
}

F32 widen(const std::string& isa, const Bytes& from, const std::string& type, float scale) {
  const DataType t = data_type(type);
  F32 to(std::vector<size_t>{static_cast<size_t>(from.size()) / size_of(t)});
  kernels::vector_ops(isa_by_name(isa)).widen(from.data(), t, static_cast<size_t>(to.size()), scale, to.mutable_data());
  return to;
}

Bytes narrow(const std::string& isa, const F32& from, const std::string& type) {
  const DataType t = data_type(type);
  const size_t n = static_cast<size_t>(from.size());
  Bytes to(std::vector<size_t>{n * size_of(t)});
  const kernels::CombineTerm term = {from.data(), nullptr, 1.0f, 1, 0};
  kernels::vector_ops(isa_by_name(isa)).combine({&term, 1, n, to.mutable_data(), t});
  return to;
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("kernel_table", &kernel_table, "Every matmul kernel of this build: name, isa, weights, layout, cut, n_step.");
  m.def("pick_kernel", &pick, py::arg("isa"), py::arg("weights"), py::arg("layout"), py::arg("m"), py::arg("n"),
        py::arg("k"), py::arg("bf16_compute") = false, "The name of the kernel that is estimated cheapest.");
  m.def("matmul", &matmul, py::arg("kernel"), py::arg("a"), py::arg("w"), py::arg("offset"), py::arg("ldw"), py::arg("n"));
  m.def("activate", &activate, py::arg("isa"), py::arg("kind"), py::arg("gate"), py::arg("up"), py::arg("alpha") = 1.702f,
        py::arg("beta") = 1.0f, py::arg("limit") = __builtin_inff());
  m.def("widen", &widen, py::arg("isa"), py::arg("bytes"), py::arg("type"), py::arg("scale") = 1.0f);
  m.def("narrow", &narrow, py::arg("isa"), py::arg("values"), py::arg("type"));
}

}  // namespace ort_hina::python
