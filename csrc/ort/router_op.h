// The Router operator as ONNX Runtime sees it: shapes are checked here, errors are worded here.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <memory>
#include <string>

#include "operators/router.h"
#include "ort/moe_op.h"

namespace ort_hina::ort {

class RouterKernel {
 public:
  RouterKernel(const OrtKernelInfo* info, const Settings& settings);
  OrtStatusPtr ComputeV2(OrtKernelContext* context);

 private:
  void compute(OrtKernelContext* context) const;

  std::string node_;
  std::unique_ptr<operators::Router> router_;
  size_t threads_;
};

// One instance for each type of the logits; ONNX Runtime picks by type.
class RouterOp : public Ort::CustomOpBase<RouterOp, RouterKernel, /*WithStatus=*/true> {
 public:
  RouterOp(ONNXTensorElementDataType logits_type, const Settings& settings) : logits_type_(logits_type), settings_(settings) {
    OrtCustomOp::version = kApiVersion;
  }

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;
  const char* GetName() const { return "Router"; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }

  size_t GetInputTypeCount() const { return 2; }
  ONNXTensorElementDataType GetInputType(size_t i) const {
    return i == 0 ? logits_type_ : ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t i) const {
    return i == 0 ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }

  size_t GetOutputTypeCount() const { return 2; }
  ONNXTensorElementDataType GetOutputType(size_t i) const {
    return i == 0 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 : ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t) const { return INPUT_OUTPUT_REQUIRED; }

 private:
  const ONNXTensorElementDataType logits_type_;
  const Settings settings_;
};

}  // namespace ort_hina::ort
