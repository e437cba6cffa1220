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

// How often the CPU is given up before a millisecond is over, more or less.
constexpr int kYields = 1000;

void wait_step(int step) {
  if (step < kSpins) relax();
  else sched_yield();
}

}  // namespace

void await(const Event& event, uint32_t count) {
  for (int step = 0; event.load(std::memory_order_acquire) < count; step += step < kSpins) wait_step(step);
}

bool await_for_a_while(const Event& event, uint32_t count) {
  for (int step = 0; step < kSpins + kYields; ++step) {
    if (event.load(std::memory_order_acquire) >= count) return true;
    wait_step(step);
  }
  return false;
}

}  // namespace ort_hina::runtime
