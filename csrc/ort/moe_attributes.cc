#include "ort/moe_attributes.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ort_hina::ort {
namespace {

// Optional attributes default only where the name is absent: one of another type is an error, not an absence.
class Reader {
 public:
  explicit Reader(const OrtKernelInfo* info) : info_(info) {}

  int64_t integer(const std::string& name) const { return required(name, "an int", read_integer(name)); }
  int64_t integer(const std::string& name, int64_t otherwise) const {
    return optional(name, "an int", read_integer(name), otherwise);
  }
  float real(const std::string& name, float otherwise) const {
    return optional(name, "a float", read_real(name), otherwise);
  }
  std::string text(const std::string& name) const { return required(name, "a string", read_text(name)); }
  std::string text(const std::string& name, const std::string& otherwise) const {
    return optional(name, "a string", read_text(name), otherwise);
  }
  std::vector<int64_t> integers(const std::string& name) const { return required(name, "ints", read_integers(name)); }
  std::vector<int64_t> integers_or_none(const std::string& name) const {
    return optional(name, "ints", read_integers(name), {});
  }

 private:
  template <typename T>
  T required(const std::string& name, const char* type, const std::optional<T>& value) const {
    if (!value) fail(name, type, exists(name) ? "is of another type (or empty)" : "is absent");
    return *value;
  }
  template <typename T>
  T optional(const std::string& name, const char* type, const std::optional<T>& value, T otherwise) const {
    if (!value && exists(name)) fail(name, type, "is of another type (or empty)");
    return value ? *value : otherwise;
  }
  [[noreturn]] static void fail(const std::string& name, const char* type, const char* what) {
    throw std::invalid_argument("attribute " + name + ": expected " + type + ", but it " + what);
  }

  std::optional<int64_t> read_integer(const std::string& name) const {
    int64_t value;
    if (!ok(Ort::GetApi().KernelInfoGetAttribute_int64(info_, name.c_str(), &value))) return std::nullopt;
    return value;
  }
  std::optional<float> read_real(const std::string& name) const {
    float value;
    if (!ok(Ort::GetApi().KernelInfoGetAttribute_float(info_, name.c_str(), &value))) return std::nullopt;
    return value;
  }
  std::optional<std::string> read_text(const std::string& name) const {
    const OrtApi& api = Ort::GetApi();
    size_t size = 0;
    if (!ok(api.KernelInfoGetAttribute_string(info_, name.c_str(), nullptr, &size)) || size == 0) return std::nullopt;
    std::string value(size, '\0');
    if (!ok(api.KernelInfoGetAttribute_string(info_, name.c_str(), &value[0], &size))) return std::nullopt;
    value.resize(size - 1);  // the terminating zero
    return value;
  }
  std::optional<std::vector<int64_t>> read_integers(const std::string& name) const {
    const OrtApi& api = Ort::GetApi();
    size_t size = 0;
    // An attribute of another type counts as an empty list here.
    if (!ok(api.KernelInfoGetAttributeArray_int64(info_, name.c_str(), nullptr, &size)) || size == 0) return std::nullopt;
    std::vector<int64_t> values(size);
    if (!ok(api.KernelInfoGetAttributeArray_int64(info_, name.c_str(), values.data(), &size))) return std::nullopt;
    return values;
  }
  // Whether the node has the attribute, of whatever type: the array getter fails only for an unknown name.
  bool exists(const std::string& name) const {
    size_t size = 0;
    return ok(Ort::GetApi().KernelInfoGetAttributeArray_int64(info_, name.c_str(), nullptr, &size));
  }
  static bool ok(OrtStatus* status) { return Ort::Status(status).IsOK(); }

  const OrtKernelInfo* info_;
};

operators::MatrixAttributes read_matrix(const Reader& read, const std::string& role, std::vector<int64_t> offsets) {
  operators::MatrixAttributes matrix;
  matrix.offsets = std::move(offsets);
  matrix.strides = matrix.offsets.empty() ? read.integers_or_none(role + "_strides") : read.integers(role + "_strides");
  matrix.windows = read.integers_or_none(role + "_windows");
  matrix.bias_offsets = read.integers_or_none(role + "_bias_offsets");
  matrix.bias_windows = read.integers_or_none(role + "_bias_windows");
  matrix.bias_stride = read.integer(role + "_bias_stride", 1);
  return matrix;
}

}  // namespace

operators::MoeAttributes read_moe_attributes(const OrtKernelInfo* info) {
  const Reader read(info);
  operators::MoeAttributes a;
  a.num_experts = read.integer("num_experts");
  a.hidden_size = read.integer("hidden_size");
  a.intermediate_size = read.integer("intermediate_size");
  a.gate = read_matrix(read, "gate", read.integers("gate_offsets"));
  a.up = read_matrix(read, "up", read.integers_or_none("up_offsets"));
  a.down = read_matrix(read, "down", read.integers("down_offsets"));
  a.activation = read.text("activation");
  a.activation_alpha = read.real("activation_alpha", a.activation_alpha);
  a.activation_beta = read.real("activation_beta", a.activation_beta);
  a.swiglu_limit = read.real("swiglu_limit", a.swiglu_limit);
  a.weight_on = read.text("weight_on", a.weight_on);
  a.missing_experts = read.text("missing_experts", a.missing_experts);
  a.sigmoid_gate.offsets = read.integers_or_none("sigmoid_gate_offsets");
  a.sigmoid_gate.windows = read.integers_or_none("sigmoid_gate_windows");
  a.sigmoid_gate.stride = read.integer("sigmoid_gate_stride", a.sigmoid_gate.stride);
  return a;
}

}  // namespace ort_hina::ort
