#include "operators/attention_mask.h"

#include <cstdint>
#include <cstring>

namespace ort_hina::operators {
namespace {

// Elements that are looked at together: in most masks they are all 1.
constexpr size_t kChunk = 32;

template <typename Word>
std::vector<kernels::KeyRange> runs_of(const void* elements, size_t count) {
  const auto nonzero = [&](size_t i) {
    Word word;
    memcpy(&word, static_cast<const uint8_t*>(elements) + i * sizeof(Word), sizeof(Word));
    return word != 0;
  };
  std::vector<kernels::KeyRange> runs;
  bool inside = false;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t end = std::min(count, begin + kChunk);
    size_t ones = 0;
    for (size_t i = begin; i < end; ++i) ones += nonzero(i);
    if (ones == (inside ? end - begin : 0)) continue;
    for (size_t i = begin; i < end; ++i) {
      if (nonzero(i) == inside) continue;
      inside = !inside;
      if (inside) runs.push_back({i, count});
      else runs.back().end = i;
    }
  }
  return runs;
}

}  // namespace

std::vector<kernels::KeyRange> runs_of_nonzero(const void* elements, size_t element_bytes, size_t count) {
  switch (element_bytes) {
    case 1: return runs_of<uint8_t>(elements, count);
    case 4: return runs_of<uint32_t>(elements, count);
    default: return runs_of<uint64_t>(elements, count);
  }
}

}  // namespace ort_hina::operators
