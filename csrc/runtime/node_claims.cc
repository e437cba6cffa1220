#include "runtime/node_claims.h"

#include <algorithm>

namespace ort_hina::runtime {

ThreadNodes thread_nodes(const Topology& topology) {
  ThreadNodes threads = {topology.nodes.size(), {}, [](size_t) { return current_node(); }};
  for (const NumaNode& node : topology.nodes) threads.distances.push_back(node.distances);
  return threads;
}

void NodeQueues::begin(size_t steps, size_t nodes) {
  steps_ = steps, nodes_ = nodes;
  lists_.resize(std::max(lists_.size(), steps * (nodes + 1)));
  for (std::vector<uint32_t>& list : lists_) list.clear();
}

NodeClaims::NodeClaims(const NodeQueues& queues, const ThreadNodes& threads, Limit limit, const std::atomic<uint32_t>* expected)
    : queues_(queues),
      threads_(threads),
      limit_(limit),
      expected_(expected),
      next_(new Counter[queues.steps() * (queues.nodes() + 1)]),
      arrived_(new Counter[queues.nodes() + 1]) {}

void NodeClaims::arrive(plan::Node node) {
  arrived_[queues_.queue_of(node)].value.fetch_add(1, std::memory_order_relaxed);
}

uint32_t NodeClaims::threads_on(size_t queue) const {
  const uint32_t expected = expected_ && queue < queues_.nodes() ? expected_[queue].load(std::memory_order_relaxed) : 0;
  return std::max(expected, arrived(static_cast<plan::Node>(queue)));
}

uint32_t NodeClaims::left(size_t step, size_t queue) const {
  const size_t items = queues_.items(step, queue).size(), taken = next(step, queue).value.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(items - std::min(items, taken));
}

uint32_t NodeClaims::take(size_t step, size_t queue) {
  if (left(step, queue) == 0) return kNoItem;
  const std::vector<uint32_t>& items = queues_.items(step, queue);
  const uint32_t at = next(step, queue).value.fetch_add(1, std::memory_order_relaxed);
  return at < items.size() ? items[at] : kNoItem;
}

// A node with more to do for each of its threads than the helper's node had is behind by plan, and is helped as soon as that pays.
// Where memory is the limit, a node's own threads use all that its memory gives, and a helper adds nothing unless they are few.
constexpr uint64_t kBehindPercent = 125, kBehindInMemoryPercent = 400, kFewThreadsPercent = 80;
// Other nodes end a step at nearly the same time. One that is late for a while is not helped before this share of its items is
// left: remote reads would slow it down.
constexpr uint64_t kLatePercent = 12, kLateInMemoryPercent = 75;

bool NodeClaims::is_behind(size_t step, size_t queue, plan::Node helper) const {
  const uint64_t own = threads_on(queue), of_helper = std::max<uint32_t>(1, threads_on(helper));
  const uint64_t items = queues_.items(step, queue).size(), helpers_items = queues_.items(step, helper).size();
  const uint64_t percent = limit_ == Limit::kMemory ? kBehindInMemoryPercent : kBehindPercent;
  const bool few = own * 100 < of_helper * kFewThreadsPercent;
  return items * of_helper * 100 > helpers_items * own * (few ? kBehindPercent : percent);
}

// A helper needs as much longer for an item as the memory is farther away, so what the node's own threads do in that time is
// left to them. A node without threads has none to leave it to.
bool NodeClaims::wants_help(size_t step, size_t queue, plan::Node helper) const {
  const uint32_t items = left(step, queue), own = threads_on(queue);
  if (items == 0 || own == 0) return items > 0;
  if (queues_.queue_of(helper) == queues_.nodes()) return true;
  const std::vector<uint32_t>& distances = threads_.distances[helper];
  if (uint64_t{items} * distances[helper] <= uint64_t{own} * distances[queue]) return false;
  const uint64_t late = limit_ == Limit::kMemory ? kLateInMemoryPercent : kLatePercent;
  return is_behind(step, queue, helper) || items * 100 > queues_.items(step, queue).size() * late;
}

uint32_t NodeClaims::claim_abandoned(size_t step) {
  for (size_t earlier = 0; earlier < step; ++earlier)
    for (size_t queue = 0; queue < queues_.nodes(); ++queue)
      if (arrived(static_cast<plan::Node>(queue)) == 0)
        if (const uint32_t item = take(earlier, queue); item != kNoItem) return item;
  return kNoItem;
}

uint32_t NodeClaims::claim(size_t step, plan::Node node) {
  for (const size_t queue : {queues_.queue_of(node), queues_.nodes()})
    if (const uint32_t item = take(step, queue); item != kNoItem) return item;
  // Near ones first.
  for (;;) {
    size_t nearest = queues_.nodes();
    uint32_t least = UINT32_MAX;
    for (size_t queue = 0; queue < queues_.nodes(); ++queue) {
      if (!wants_help(step, queue, node)) continue;
      const uint32_t distance = node < queues_.nodes() ? threads_.distances[node][queue] : 0;
      if (nearest == queues_.nodes() || distance < least) nearest = queue, least = distance;
    }
    if (nearest == queues_.nodes()) return kNoItem;
    if (const uint32_t item = take(step, nearest); item != kNoItem) return item;
  }
}

}  // namespace ort_hina::runtime
