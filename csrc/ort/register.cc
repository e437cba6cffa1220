// The library's only export.
#include <cstdlib>
#include <list>
#include <mutex>

#include "ort/attention_op.h"
#include "ort/moe_op.h"
#include "ort/router_op.h"
#include "runtime/cpu.h"

namespace ort_hina::ort {
namespace {

constexpr char kDomain[] = "ort_hina";
constexpr char kThreadsKey[] = "ort_hina.threads";
constexpr char kComputeKey[] = "ort_hina.compute";
// From version 1.24 on, asking for shapes where an optional input is left out reads no null pointer.
constexpr unsigned long kSafeInference = 24;

// What one session's options registered. ONNX Runtime keeps pointers into it as long as any session lives, and does not say
// when the last one ends, so it is kept to the end of the process.
struct Registration {
  explicit Registration(plan::NumaMode mode) : numa(mode) {}
  NumaWindows numa;
  Ort::CustomOpDomain domain{kDomain};
  std::list<MoeOp> moe;
  std::list<RouterOp> router;
  std::list<AttentionOp> attention;
};

std::string config_entry(const OrtSessionOptions* options, const char* key) {
  const OrtApi& api = Ort::GetApi();
  int present = 0;
  Ort::ThrowOnError(api.HasSessionConfigEntry(options, key, &present));
  if (!present) return {};
  size_t size = 0;
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, key, nullptr, &size));
  std::string value(size, '\0');
  Ort::ThrowOnError(api.GetSessionConfigEntry(options, key, &value[0], &size));
  value.resize(size ? size - 1 : 0);
  return value;
}

size_t read_threads(const OrtSessionOptions* options) {
  const std::string text = config_entry(options, kThreadsKey);
  if (text.empty()) return runtime::usable_threads();
  char* end = nullptr;
  const long threads = std::strtol(text.c_str(), &end, 10);
  if (*end || threads < 1 || threads > 65536)
    throw std::invalid_argument(std::string("session config entry ") + kThreadsKey + ": expected a number of threads, got '" +
                                text + "'");
  return static_cast<size_t>(threads);
}

bool read_bf16_compute(const OrtSessionOptions* options) {
  const std::string text = config_entry(options, kComputeKey);
  if (text.empty() || text == "default") return false;
  if (text == name_of(DataType::kBF16)) return true;
  throw std::invalid_argument(std::string("session config entry ") + kComputeKey + ": expected default or bfloat16, got '" +
                              text + "'");
}

// Whether ONNX Runtime of this version may ask a node with optional inputs for the shape of its output.
bool may_infer_shapes(const std::string& version) {
  return version.rfind("1.", 0) != 0 || std::strtoul(version.c_str() + 2, nullptr, 10) >= kSafeInference;
}

void register_ops(OrtSessionOptions* options, const std::string& version) {
  static std::mutex mutex;
  static std::list<Registration> registrations;
  Settings settings = {read_threads(options), read_bf16_compute(options), nullptr};
  const plan::NumaMode numa_mode = parse_numa_mode(config_entry(options, kNumaKey));
  const bool infers_shapes = may_infer_shapes(version);
  const std::lock_guard<std::mutex> lock(mutex);
  Registration& registration = registrations.emplace_back(numa_mode);
  settings.numa = &registration.numa;
  for (auto type : {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
                    ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16}) {
    registration.domain.Add(&registration.moe.emplace_back(type, settings, infers_shapes));
    registration.domain.Add(&registration.router.emplace_back(type, settings));
    registration.domain.Add(&registration.attention.emplace_back(type, settings));
  }
  Ort::ThrowOnError(Ort::GetApi().AddCustomOpDomain(options, registration.domain));
}

}  // namespace
}  // namespace ort_hina::ort

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                                            const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ort_hina::ort::kApiVersion);
  if (!api) {
    const std::string message = "ort_hina needs ONNX Runtime 1." + std::to_string(ort_hina::ort::kApiVersion) +
                                " or newer, this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, message.c_str());
  }
  Ort::InitApi(api);
  try {
    ort_hina::ort::register_ops(options, base->GetVersionString());
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_INVALID_ARGUMENT, (std::string("ort_hina: ") + error.what()).c_str());
  }
}
