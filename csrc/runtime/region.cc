#include "runtime/region.h"

#include <sched.h>

namespace ort_hina::runtime {
namespace {

// About 20 µs: longer than an item's tail, shorter than a time slice. Beyond it the signaller has probably lost its CPU.
constexpr int kSpins = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void await(const Event& event, uint32_t count) {
  for (int spins = 0; event.load(std::memory_order_acquire) < count; ++spins) {
    if (spins < kSpins) relax();
    else sched_yield();
  }
}

}  // namespace ort_hina::runtime
