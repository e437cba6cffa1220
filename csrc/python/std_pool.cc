#include "python/std_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace ort_hina::python {
namespace {

// Longer than what passes between the layers of a model.
constexpr std::chrono::microseconds kAwake{500};

class StdPool {
 public:
  void run(size_t threads, size_t count, void (*body)(void*, size_t), void* data) {
    const std::lock_guard<std::mutex> turn(turn_);
    const size_t helpers = std::min(threads, count) - 1;
    for (; threads_ < helpers; ++threads_) start(threads_);
    body_ = body, data_ = data, count_ = count, helpers_ = helpers;
    next_ = 0;
    busy_.store(threads_, std::memory_order_relaxed);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take();
    while (busy_.load(std::memory_order_acquire)) std::this_thread::yield();
  }

 private:
  void take() {
    for (size_t i; (i = next_.fetch_add(1)) < count_;) body_(data_, i);
  }

  void start(size_t number) {
    std::thread([this, number, seen = generation_.load()] { work(number, seen); }).detach();
  }

  void work(size_t number, size_t seen) {
    for (;;) {
      seen = next_generation(seen);
      if (number < helpers_) take();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  size_t next_generation(size_t seen) {
    const auto until = std::chrono::steady_clock::now() + kAwake;
    while (generation_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    return generation_.load(std::memory_order_acquire);
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  size_t threads_ = 0;  // beside the calling one
  std::atomic<size_t> generation_{0}, next_{0}, busy_{0};
  void (*body_)(void*, size_t) = nullptr;
  void* data_ = nullptr;
  size_t count_ = 0, helpers_ = 0;
};

// Never destroyed: its threads run to the end of the process. A forked child has none of them and starts anew.
StdPool& current_pool() {
  static StdPool* pool = [] {
    pthread_atfork(nullptr, nullptr, [] { pool = new StdPool; });
    return new StdPool;
  }();
  return *pool;
}

}  // namespace

void std_parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data) {
  const size_t threads = *static_cast<const size_t*>(context);
  if (threads <= 1 || count <= 1) {
    for (size_t i = 0; i < count; ++i) body(data, i);
    return;
  }
  current_pool().run(threads, count, body, data);
}

}  // namespace ort_hina::python
