#include "ort/attention_buffers.h"

#include <stdexcept>

namespace ort_hina::ort {
namespace {

using std::to_string;

constexpr const char* kNames[kAttentionOutputs] = {"output 0 (output)", "output 1 (present_key)",
                                                   "output 2 (present_value)"};

bool overlap(const Buffer& a, const Buffer& b) {
  return a.bytes && b.bytes && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

bool same(const Buffer& a, const Buffer& b) { return a.begin == b.begin && a.bytes == b.bytes; }

// Of a present cache: its past. kAttentionInputs: none.
size_t past_of(size_t output) {
  if (output == kPresentKey) return kPastKey;
  return output == kPresentValue ? kPastValue : kAttentionInputs;
}

[[noreturn]] void fail(size_t output, const std::string& alternative, const std::string& other) {
  throw std::invalid_argument(std::string(kNames[output]) + ": expected a buffer of its own, " + alternative +
                              "got one that overlaps " + other);
}

}  // namespace

void check_attention_buffers(const std::array<Buffer, kAttentionInputs>& inputs,
                             const std::array<Buffer, kAttentionOutputs>& outputs, size_t past_length,
                             size_t present_length) {
  for (size_t output = 0; output < kAttentionOutputs; ++output) {
    const size_t past = past_of(output);
    for (size_t input = 0; input < kAttentionInputs; ++input) {
      if (!overlap(outputs[output], inputs[input])) continue;
      if (input == past && same(outputs[output], inputs[input])) continue;
      const std::string alternative =
          past == kAttentionInputs
              ? ""
              : "or that of " + attention_input_name(past) + " if both have " + to_string(present_length) + " rows; ";
      const bool is_past = input == kPastKey || input == kPastValue;
      fail(output, alternative,
           attention_input_name(input) + (is_past ? ", which has " + to_string(past_length) + " rows" : ""));
    }
    for (size_t other = 0; other < output; ++other)
      if (overlap(outputs[output], outputs[other])) fail(output, "", kNames[other]);
  }
}

}  // namespace ort_hina::ort
