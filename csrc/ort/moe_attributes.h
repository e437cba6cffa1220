// The attributes of a MoE node.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <vector>

#include "operators/moe_config.h"

namespace ort_hina::ort {

// Throws std::invalid_argument where a required attribute is absent or has another type.
operators::MoeAttributes read_moe_attributes(const OrtKernelInfo* info);

// The element type of everything that is read from each window. Throws std::invalid_argument where there is not one for
// each, or one is not float, float16 or bfloat16.
std::vector<DataType> read_window_types(const OrtKernelInfo* info, size_t windows);

}  // namespace ort_hina::ort
