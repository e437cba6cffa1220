// The MoE operator as ONNX Runtime sees it: shapes are checked here, errors are worded here.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <memory>
#include <string>
#include <vector>

#include "operators/moe.h"
#include "ort/numa_windows.h"

namespace ort_hina::ort {

// The lowest version of the function table that has all that is called here. Asking for no more lets one build serve
// every newer runtime.
constexpr uint32_t kApiVersion = 18;

// What the session's options say about this library (ort_hina.register sets them).
struct Settings {
  size_t threads;
  bool bf16_compute;
  NumaWindows* numa;  // not owned
};

// The inputs of a node, in order.
enum Input : size_t { kX, kExpertIds, kExpertWeights, kAddend, kWindows };

class MoeKernel {
 public:
  MoeKernel(const OrtKernelInfo* info, const Settings& settings);
  OrtStatusPtr ComputeV2(OrtKernelContext* context);

 private:
  void share_out(const OrtKernelInfo* info, const std::vector<operators::Window>& windows, NumaWindows* numa);
  void compute(OrtKernelContext* context) const;

  std::string node_;
  runtime::ThreadNodes thread_nodes_;  // empty unless weights are shared out among NUMA nodes
  std::unique_ptr<operators::Moe> moe_;
  size_t threads_;
};

// One instance for each type of X; ONNX Runtime picks by type.
class MoeOp : public Ort::CustomOpBase<MoeOp, MoeKernel, /*WithStatus=*/true> {
 public:
  // `infers_shapes`: whether the runtime may ask for the shape of Y. Those before 1.24 crash when they do so for a node that
  // leaves an input out.
  MoeOp(ONNXTensorElementDataType x_type, const Settings& settings, bool infers_shapes)
      : x_type_(x_type), settings_(settings) {
    OrtCustomOp::version = kApiVersion;
    OrtCustomOp::InferOutputShapeFn = infers_shapes ? infer_output_shape : nullptr;
  }

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;
  const char* GetName() const { return "MoE"; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }

  size_t GetInputTypeCount() const { return kWindows + 1; }
  ONNXTensorElementDataType GetInputType(size_t i) const {
    return i == kX ? x_type_ : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t i) const {
    if (i == kX) return INPUT_OUTPUT_REQUIRED;
    return i < kWindows ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_VARIADIC;
  }
  int GetVariadicInputMinArity() const { return 1; }
  bool GetVariadicInputHomogeneity() const { return false; }

  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return x_type_; }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t) const { return INPUT_OUTPUT_REQUIRED; }

 private:
  static OrtStatusPtr ORT_API_CALL infer_output_shape(const OrtCustomOp* op, OrtShapeInferContext* context);

  const ONNXTensorElementDataType x_type_;
  const Settings settings_;
};

}  // namespace ort_hina::ort
