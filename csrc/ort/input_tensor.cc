#include "ort/input_tensor.h"

namespace ort_hina::ort {
namespace {

size_t element_bytes(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return 1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return 8;
    default: return 4;
  }
}

}  // namespace

InputTensor read_input(const Ort::KernelContext& context, size_t input) {
  InputTensor t;
  if (input >= context.GetInputCount()) return t;
  const Ort::ConstValue value = context.GetInput(input);
  if (!value) return t;
  const auto info = value.GetTensorTypeAndShapeInfo();
  t.shape = info.GetShape();
  t.type = info.GetElementType();
  t.data = value.GetTensorRawData();
  t.present = true;
  return t;
}

Buffer buffer_of(const InputTensor& t) {
  size_t count = t.present ? 1 : 0;
  for (int64_t dim : t.shape) count *= static_cast<size_t>(dim);
  return {static_cast<const uint8_t*>(t.data), count * element_bytes(t.type)};
}

}  // namespace ort_hina::ort
