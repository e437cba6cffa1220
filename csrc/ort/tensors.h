// What operators have in common with ONNX Runtime: shapes and types of tensors, the thread pool, errors.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <exception>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace ort_hina::ort {

const char* type_name(ONNXTensorElementDataType type);

// Throws std::invalid_argument, beginning with `what`, where it is none of the three.
DataType floating_type(ONNXTensorElementDataType type, const std::string& what);

std::string describe(const std::vector<int64_t>& shape);

// Rows and the last dimension of a rank 2 or 3 input.
struct Rows {
  std::vector<int64_t> shape;
  size_t rows, width;
  ONNXTensorElementDataType type;
};

// Throws std::invalid_argument, beginning with `what`, where the rank is another.
Rows rows_of(const Ort::ConstValue& value, const char* what);

// runtime::Pool::parallel_for over ONNX Runtime's own pool; `context` is the OrtKernelContext.
void parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data);

// How errors call a node; they begin with it.
std::string node_name(const char* operator_name, const OrtKernelInfo* info);

// The error that a session or a call answers with; `node` begins the message.
OrtStatusPtr status_of(const std::string& node, const std::exception& error);

// What `body` throws becomes that error: no exception may reach ONNX Runtime.
template <typename Body>
OrtStatusPtr guarded(const std::string& node, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return status_of(node, error);
  }
}

}  // namespace ort_hina::ort
