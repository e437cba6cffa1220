#include "runtime/placement.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "runtime/memory_policy.h"

namespace ort_hina::runtime {
namespace {

using plan::kUnknownNode;

// Pages in one call: a list of their addresses stays in the L1 cache, and the time of a call is spread.
constexpr size_t kBatch = 1024;

class Query {
 public:
  Query(const PageRange& pages, const Topology& topology) : pages_(pages), status_(kBatch) {
    for (size_t n = 0; n < topology.nodes.size(); ++n) {
      const uint32_t id = topology.nodes[n].id;
      if (node_of_id_.size() <= id) node_of_id_.resize(id + 1, kUnknownNode);
      node_of_id_[id] = static_cast<plan::Node>(n);
    }
  }

  // Calls take(pages, node) for runs of pages, in order.
  template <typename Take>
  void run(const Take& take) {
    const size_t count = pages_.bytes() / page_size();
    for (size_t done = 0; done < count; done += kBatch) {
      const size_t batch = std::min(kBatch, count - done);
      if (!ask(pages_.begin + done * page_size(), batch)) return take(count - done, kUnknownNode);
      for (size_t i = 0; i < batch; ++i) take(1, node_of(status_[i]));
    }
  }

 private:
  // False: the kernel answers no such question.
  bool ask(uintptr_t first, size_t count) {
    // Mapping what is mapped takes twice as long as the question itself.
    if (!seems_mapped(first, count)) populate_read({first, first + count * page_size()});
    if (query_nodes(first, count, status_.data()) != 0) return false;
    for (size_t begin = 0; begin < count;) {
      size_t end = begin;
      while (end < count && status_[end] == -ENOENT) ++end;
      if (end > begin) ask_again(first, begin, end);
      begin = end + 1;
    }
    return true;
  }

  static bool seems_mapped(uintptr_t first, size_t count) {
    for (const size_t sample : {size_t{0}, count / 2, count - 1}) {
      int status = 0;
      if (query_nodes(first + sample * page_size(), 1, &status) != 0 || status == -ENOENT) return false;
    }
    return true;
  }

  // A page may have been taken away since it was mapped; and one that cannot be mapped keeps those after it from being so.
  void ask_again(uintptr_t first, size_t begin, size_t end) {
    const PageRange pages = {first + begin * page_size(), first + end * page_size()};
    if (populate_read(pages) != 0)
      for (uintptr_t page = pages.begin; page < pages.end; page += page_size()) populate_read({page, page + page_size()});
    query_nodes(pages.begin, end - begin, &status_[begin]);
  }

  plan::Node node_of(int status) const {
    return status >= 0 && static_cast<size_t>(status) < node_of_id_.size() ? node_of_id_[static_cast<size_t>(status)]
                                                                          : kUnknownNode;
  }

  const PageRange pages_;
  std::vector<int> status_;
  std::vector<plan::Node> node_of_id_;
};

}  // namespace

plan::PageMap query_placement(const void* begin, size_t bytes, const Topology& topology) {
  plan::PageMap map;
  const PageRange pages = pages_around(begin, bytes);
  uint64_t left = bytes, skipped = reinterpret_cast<uintptr_t>(begin) - pages.begin;
  Query(pages, topology).run([&](size_t count, plan::Node node) {
    const uint64_t here = std::min<uint64_t>(left, count * page_size() - skipped);
    map.append(here, node);
    left -= here;
    skipped = 0;
  });
  return map;
}

PageSource mapped_pages(const Topology& topology) {
  return {page_size(), [&topology](uintptr_t first, size_t count, plan::Node* nodes) {
            std::vector<int> status(std::min(count, kBatch));
            for (size_t done = 0; done < count; done += kBatch) {
              const size_t batch = std::min(kBatch, count - done);
              if (query_nodes(first + done * page_size(), batch, status.data()) != 0) return false;
              for (size_t i = 0; i < batch; ++i)
                nodes[done + i] = status[i] < 0 ? kUnknownNode : topology.node_of_id(static_cast<uint32_t>(status[i]));
            }
            return true;
          }};
}

}  // namespace ort_hina::runtime
