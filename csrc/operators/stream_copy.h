// Copying what nobody reads soon.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ort_hina::operators {

// memcpy past the caches: the line that is overwritten is not read first, and nothing else is pushed out.
inline void stream_copy(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64, kVector = sizeof(__m128i);
  const size_t unaligned = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine, head = unaligned < bytes ? unaligned : bytes;
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine)
    for (size_t i = 0; i < kLine; i += kVector)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  _mm_sfence();  // these stores are ordered with nothing else
#endif
  memcpy(to, from, bytes);
}

}  // namespace ort_hina::operators
