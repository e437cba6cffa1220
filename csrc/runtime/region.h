// One parallel region for each operator call, over whatever pool the host lends.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ort_hina::runtime {

// A pool that runs body(data, i) for each i in [0, count), in any order and on any of its threads, and then returns. It need
// not run all of them at once.
struct Pool {
  void* context;
  void (*parallel_for)(void* context, size_t count, void (*body)(void* data, size_t i), void* data);
  size_t threads;  // how many the host is expected to have; a wrong number costs speed, not correctness
};

// Signalled by finished items, awaited by later ones.
using Event = std::atomic<uint32_t>;

// Waits until `event` has been signalled `count` times. The signallers have been claimed by running threads, so this ends.
void await(const Event& event, uint32_t count);
// The same for about a millisecond; returns whether that was enough.
bool await_for_a_while(const Event& event, uint32_t count);

}  // namespace ort_hina::runtime
