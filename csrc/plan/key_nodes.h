// On which node each key of one head lies, with its value: what attention of a few queries is cut by.
#pragma once
#include <vector>

#include "kernels/attention.h"
#include "plan/page_map.h"

namespace ort_hina::plan {

// Keys that are given to a node together, the first one's number a multiple of this: few enough for pages of 4 KB with 512
// bytes of each key.
constexpr size_t kKeysOfNode = 8;

// Rows of one head in a cache.
struct StoredRows {
  const PageMap* map;
  uint64_t begin;  // of row 0, in the map's bytes
  size_t row_bytes;
};

class KeyNodes {
 public:
  // Some of a node's keys, in order, and how many of its keys come before each run.
  struct Keys {
    std::vector<kernels::KeyRange> runs;
    std::vector<size_t> before;

    // How many there are before key `end`.
    size_t count(size_t end) const;
    // The rest of the run that holds this key.
    kernels::KeyRange run_from(size_t key) const;
    // The key before which there are `index` of this node's; index < count(SIZE_MAX).
    size_t at(size_t index) const;
  };

  // Looks at further keys, as far as both maps tell. A block of them goes to the node with most of its bytes, of two with as
  // many to that of the first key; a block of unknown place goes where the one before it is, or else the one after it.
  void extend(const StoredRows& keys, const StoredRows& values);

  // Nothing is known.
  bool empty() const { return last_ == kUnknownNode; }
  // Keys looked at. Those after them are given to the last one's node.
  size_t looked_at() const { return looked_at_; }
  // By node.
  const std::vector<Keys>& nodes() const { return nodes_; }

 private:
  void append(Node node);

  std::vector<Keys> nodes_;
  size_t looked_at_ = 0;
  Node last_ = kUnknownNode;
};

}  // namespace ort_hina::plan
