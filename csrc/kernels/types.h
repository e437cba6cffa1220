// The vocabulary that all rooms share: element types, instruction levels, layouts.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ort_hina {

enum class DataType : uint8_t { kF32, kF16, kBF16 };
constexpr size_t size_of(DataType t) { return t == DataType::kF32 ? 4 : 2; }
constexpr const char* name_of(DataType t) {
  return t == DataType::kF32 ? "float" : t == DataType::kF16 ? "float16" : "bfloat16";
}

// Best last, so that levels compare: a CPU that has a level has those below it.
enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };
constexpr const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

// [N,K]: a row holds one output's inputs (torch Linear). [K,N]: a row holds one input's outputs (ONNX MatMul).
enum class Layout : uint8_t { kNK, kKN };
constexpr const char* name_of(Layout layout) { return layout == Layout::kNK ? "nk" : "kn"; }

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kIdentity, kSwigluOai };

struct ActivationSpec {
  Activation kind = Activation::kSilu;
  float alpha = 1.702f;
  float beta = 1.0f;
  float limit = __builtin_inff();
};

}  // namespace ort_hina
