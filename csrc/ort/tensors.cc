#include "ort/tensors.h"

#include <stdexcept>

namespace ort_hina::ort {
namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

struct PoolBody {
  void (*body)(void*, size_t);
  void* data;
};

}  // namespace

const char* type_name(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return "float";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return "float16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return "bfloat16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return "double";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return "int32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return "int64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16: return "int16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return "int8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return "uint8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return "uint16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32: return "uint32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64: return "uint64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return "bool";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: return "string";
    default: return "of another element type";
  }
}

DataType floating_type(ONNXTensorElementDataType type, const std::string& what) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return DataType::kF32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DataType::kF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DataType::kBF16;
    default: fail(what + " is " + type_name(type) + ", expected float, float16 or bfloat16");
  }
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + to_string(shape[i]);
  return text + ")";
}

Rows rows_of(const Ort::ConstValue& value, const char* what) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  Rows r = {info.GetShape(), 1, 0, info.GetElementType()};
  if (r.shape.size() != 2 && r.shape.size() != 3)
    fail(std::string(what) + ": expected rank 2 or 3, got shape " + describe(r.shape));
  for (size_t i = 0; i + 1 < r.shape.size(); ++i) r.rows *= static_cast<size_t>(r.shape[i]);
  r.width = static_cast<size_t>(r.shape.back());
  return r;
}

void parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data) {
  PoolBody call = {body, data};
  auto run = [](void* raw, size_t i) {
    const PoolBody* call = static_cast<const PoolBody*>(raw);
    call->body(call->data, i);
  };
  Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(static_cast<const OrtKernelContext*>(context), run, count, 0, &call));
}

std::string node_name(const char* operator_name, const OrtKernelInfo* info) {
  return std::string("ort_hina ") + operator_name + " node '" + Ort::ConstKernelInfo{info}.GetNodeName() + "': ";
}

OrtStatusPtr status_of(const std::string& node, const std::exception& error) {
  const OrtErrorCode code =
      dynamic_cast<const std::invalid_argument*>(&error) ? ORT_INVALID_ARGUMENT : ORT_RUNTIME_EXCEPTION;
  return Ort::GetApi().CreateStatus(code, (node + error.what()).c_str());
}

}  // namespace ort_hina::ort
