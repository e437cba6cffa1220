// A node's attributes, by name and type.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ort_hina::ort {

// Throws std::invalid_argument where a required attribute is absent, or any has another type.
// Optional attributes default only where the name is absent: one of another type is an error, not an absence.
class AttributeReader {
 public:
  explicit AttributeReader(const OrtKernelInfo* info) : info_(info) {}

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

}  // namespace ort_hina::ort
