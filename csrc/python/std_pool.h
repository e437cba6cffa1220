// A region's threads where no ONNX Runtime lends any: kept between calls, and awake for a while after each, as its are.
#pragma once
#include "runtime/region.h"

namespace ort_hina::python {

// Runs body(data, i) for each i in [0, count) on `*static_cast<size_t*>(context)` threads, the calling one among them. Calls
// from several threads take turns.
void std_parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data);

}  // namespace ort_hina::python
