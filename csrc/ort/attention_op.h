// The GroupQueryAttention operator as ONNX Runtime sees it: shapes are checked here, errors are worded here.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <memory>
#include <string>

#include "operators/attention.h"
#include "operators/cache_placement.h"
#include "ort/moe_op.h"

namespace ort_hina::ort {

class AttentionKernel {
 public:
  AttentionKernel(const OrtKernelInfo* info, const Settings& settings);
  OrtStatusPtr ComputeV2(OrtKernelContext* context);

 private:
  void compute(OrtKernelContext* context) const;

  std::string node_;
  std::unique_ptr<operators::Attention> attention_;
  std::unique_ptr<operators::CachePlacement> caches_;  // null where memory nodes are not regarded
  size_t threads_;
};

// One instance for each type of the query; ONNX Runtime picks by type.
class AttentionOp : public Ort::CustomOpBase<AttentionOp, AttentionKernel, /*WithStatus=*/true> {
 public:
  AttentionOp(ONNXTensorElementDataType type, const Settings& settings) : type_(type), settings_(settings) {
    OrtCustomOp::version = kApiVersion;
  }

  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;
  const char* GetName() const { return "GroupQueryAttention"; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }

  size_t GetInputTypeCount() const;
  ONNXTensorElementDataType GetInputType(size_t i) const;
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t i) const;

  size_t GetOutputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return type_; }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(size_t) const { return INPUT_OUTPUT_REQUIRED; }

 private:
  const ONNXTensorElementDataType type_;
  const Settings settings_;
};

}  // namespace ort_hina::ort
