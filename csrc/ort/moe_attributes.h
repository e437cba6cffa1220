// The attributes of a MoE node.
#pragma once
#include <onnxruntime_cxx_api.h>

#include "operators/moe_config.h"

namespace ort_hina::ort {

// Throws std::invalid_argument where a required attribute is absent or has another type.
operators::MoeAttributes read_moe_attributes(const OrtKernelInfo* info);

}  // namespace ort_hina::ort
