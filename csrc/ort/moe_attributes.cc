#include "ort/moe_attributes.h"

#include <stdexcept>
#include <string>

namespace ort_hina::ort {
namespace {

class Reader {
 public:
  explicit Reader(const OrtKernelInfo* info) : info_(info) {}

  int64_t integer(const std::string& name) const {
    int64_t value;
    require(name, "an int", Ort::GetApi().KernelInfoGetAttribute_int64(info_, name.c_str(), &value));
    return value;
  }
  int64_t integer(const std::string& name, int64_t otherwise) const {
    int64_t value;
    return found(Ort::GetApi().KernelInfoGetAttribute_int64(info_, name.c_str(), &value)) ? value : otherwise;
  }
  float real(const std::string& name, float otherwise) const {
    float value;
    return found(Ort::GetApi().KernelInfoGetAttribute_float(info_, name.c_str(), &value)) ? value : otherwise;
  }
  std::string text(const std::string& name) const {
    std::string value;
    require(name, "a string", read_text(name, &value));
    return value;
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    std::string value;
    return found(read_text(name, &value)) ? value : otherwise;
  }
  std::vector<int64_t> integers(const std::string& name, bool required) const {
    std::vector<int64_t> values;
    Ort::Status status(read_integers(name, &values));
    if (status.IsOK()) return values;
    if (required) missing(name, "ints");
    return {};
  }

 private:
  OrtStatus* read_text(const std::string& name, std::string* value) const {
    size_t size = 0;
    if (OrtStatus* status = Ort::GetApi().KernelInfoGetAttribute_string(info_, name.c_str(), nullptr, &size)) return status;
    value->resize(size);
    OrtStatus* status = Ort::GetApi().KernelInfoGetAttribute_string(info_, name.c_str(), &(*value)[0], &size);
    if (size) value->resize(size - 1);  // the terminating zero
    return status;
  }
  OrtStatus* read_integers(const std::string& name, std::vector<int64_t>* values) const {
    size_t size = 0;
    const OrtApi& api = Ort::GetApi();
    if (OrtStatus* status = api.KernelInfoGetAttributeArray_int64(info_, name.c_str(), nullptr, &size)) return status;
    values->resize(size);
    return api.KernelInfoGetAttributeArray_int64(info_, name.c_str(), values->data(), &size);
  }
  static bool found(OrtStatus* status) { return Ort::Status(status).IsOK(); }
  static void require(const std::string& name, const char* type, OrtStatus* status) {
    if (!found(status)) missing(name, type);
  }
  [[noreturn]] static void missing(const std::string& name, const char* type) {
    throw std::invalid_argument("attribute " + name + ": expected " + type + ", but it is absent or of another type");
  }

  const OrtKernelInfo* info_;
};

operators::MatrixAttributes read_matrix(const Reader& read, const std::string& role, bool required) {
  operators::MatrixAttributes matrix;
  matrix.offsets = read.integers(role + "_offsets", required);
  if (matrix.offsets.empty() && !required) return matrix;
  matrix.strides = read.integers(role + "_strides", true);
  matrix.windows = read.integers(role + "_windows", false);
  matrix.bias_offsets = read.integers(role + "_bias_offsets", false);
  matrix.bias_windows = read.integers(role + "_bias_windows", false);
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
  a.gate = read_matrix(read, "gate", true);
  a.up = read_matrix(read, "up", false);
  a.down = read_matrix(read, "down", true);
  a.activation = read.text("activation");
  a.activation_alpha = read.real("activation_alpha", a.activation_alpha);
  a.activation_beta = read.real("activation_beta", a.activation_beta);
  a.swiglu_limit = read.real("swiglu_limit", a.swiglu_limit);
  a.weight_on = read.text("weight_on", a.weight_on);
  return a;
}

}  // namespace ort_hina::ort
