// Who does what in a region on a machine of several NUMA nodes. Each step's items lie in queues: one for each node, and one of
// what any thread may do. A thread takes what its own node has, then what is anyone's; then it helps other nodes where that
// pays, and only then goes on to the next step.
//
// A thread may wait for items of earlier steps: every one of them has been claimed, or lies in the queue of a node that has
// threads in the region, which go on to no later step before their queue is empty, or of one whose threads are expected: who
// waits for those in vain does their work (claim_abandoned).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/page_map.h"
#include "runtime/topology.h"

namespace ort_hina::runtime {

// The nodes that a region's threads may run on.
struct ThreadNodes {
  size_t nodes;
  std::vector<std::vector<uint32_t>> distances;  // between nodes, as the firmware tells them: 10 is the own one
  // Of the calling thread, which runs a region's body for the i-th time; kUnknownNode where that is not known.
  std::function<plan::Node(size_t i)> current;
};

// Of this machine's threads.
ThreadNodes thread_nodes(const Topology& topology);

constexpr uint32_t kNoItem = UINT32_MAX;

// Items of each step and queue, in the order in which they are taken. Kept between calls.
class NodeQueues {
 public:
  void begin(size_t steps, size_t nodes);
  // kUnknownNode: anyone's.
  void add(size_t step, plan::Node node, uint32_t item) { lists_[list(step, queue_of(node))].push_back(item); }

  size_t steps() const { return steps_; }
  size_t nodes() const { return nodes_; }
  size_t queue_of(plan::Node node) const { return node < nodes_ ? node : nodes_; }
  const std::vector<uint32_t>& items(size_t step, size_t queue) const { return lists_[list(step, queue)]; }

 private:
  size_t list(size_t step, size_t queue) const { return step * (nodes_ + 1) + queue; }
  size_t steps_ = 0, nodes_ = 0;
  std::vector<std::vector<uint32_t>> lists_;
};

// What a region's threads spend their time with.
enum class Limit : uint8_t { kMemory, kArithmetic };

class NodeClaims {
 public:
  // expected: threads of each node that have come to earlier regions; null: not known.
  NodeClaims(const NodeQueues& queues, const ThreadNodes& threads, Limit limit, const std::atomic<uint32_t>* expected = nullptr);

  // Once by each thread, before its first claim.
  void arrive(plan::Node node);
  // The next item of this step for a thread on this node; kNoItem where it should go on.
  uint32_t claim(size_t step, plan::Node node);
  // An item of an earlier step on a node whose threads have not come; kNoItem if there is none.
  uint32_t claim_abandoned(size_t step);

  uint32_t arrived(plan::Node node) const { return arrived_[node].value.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Counter {
    std::atomic<uint32_t> value{0};
  };
  uint32_t take(size_t step, size_t queue);
  uint32_t left(size_t step, size_t queue) const;
  uint32_t threads_on(size_t queue) const;
  bool is_behind(size_t step, size_t queue, plan::Node helper) const;
  bool wants_help(size_t step, size_t queue, plan::Node helper) const;
  Counter& next(size_t step, size_t queue) const { return next_[step * (queues_.nodes() + 1) + queue]; }

  const NodeQueues& queues_;
  const ThreadNodes& threads_;
  const Limit limit_;
  const std::atomic<uint32_t>* const expected_;
  std::unique_ptr<Counter[]> next_;     // of each step and queue
  std::unique_ptr<Counter[]> arrived_;  // threads of each node
};

}  // namespace ort_hina::runtime
