// Bringing the caches up to date, cut into items that any threads may do in any order: new tokens, with all their heads, and,
// where past and present lie apart, ranges of rows of one head, so that few heads of a long cache keep every thread busy.
#pragma once
#include <vector>

#include "operators/attention.h"
#include "operators/attention_heads.h"
#include "plan/attention.h"

namespace ort_hina::operators {

struct CacheItem {
  size_t batch, head;      // head: of old rows only
  kernels::KeyRange rows;  // of the present cache, or new tokens
  bool is_new;
};

class CacheUpdate {
 public:
  CacheUpdate(const AttentionInputs& in, size_t kv_heads, const std::vector<plan::Sequence>& batch,
              const kernels::VectorOps& ops);

  const std::vector<CacheItem>& items() const { return items_; }
  // Of a sequence.
  uint32_t items_of(size_t batch) const { return count_[batch]; }

  // head: scratch of keys.size floats.
  void run(const CacheItem& item, TokenHeads& keys, float* head) const;

 private:
  void add(const CacheItem& item);
  void append(const CacheItem& item, TokenHeads& keys, float* head) const;
  void carry_over(const Cache& cache, const CacheItem& item) const;
  uint8_t* row(const Cache& cache, size_t batch, size_t head, size_t row) const;

  const AttentionInputs& in_;
  const size_t kv_heads_;
  const std::vector<plan::Sequence>& batch_;
  const kernels::VectorOps& ops_;
  std::vector<CacheItem> items_;
  std::vector<uint32_t> count_;
};

}  // namespace ort_hina::operators
