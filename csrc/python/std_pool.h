// A region's threads where no ONNX Runtime lends any: started for each call.
#pragma once
#include <atomic>
#include <thread>
#include <vector>

#include "runtime/region.h"

namespace ort_hina::python {

inline void std_parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data) {
  const size_t threads = *static_cast<const size_t*>(context);
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) body(data, i);
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads && t < count; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace ort_hina::python
