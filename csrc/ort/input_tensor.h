// An input of a call: its type, shape and memory.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ort_hina::ort {

// Where a tensor lies.
struct Buffer {
  const uint8_t* begin = nullptr;
  size_t bytes = 0;
};

// Nothing is present where the node leaves the input out.
struct InputTensor {
  const void* data = nullptr;
  std::vector<int64_t> shape;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  bool present = false;

  size_t dim(size_t i) const { return static_cast<size_t>(shape[i]); }
};

InputTensor read_input(const Ort::KernelContext& context, size_t input);

// Of elements of at most 8 bytes.
Buffer buffer_of(const InputTensor& tensor);

}  // namespace ort_hina::ort
