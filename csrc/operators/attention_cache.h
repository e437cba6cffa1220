// Bringing the caches up to date, cut into items that any threads may do in any order: new tokens, with all their heads, and,
// where past and present lie apart, ranges of rows of one head, so that few heads of a long cache keep every thread busy.
// Where each old row is read by one unit of attention only, the unit reads it from the past and carries it over itself, while
// it is at hand: memory is then read once.
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
  bool awaited;  // by the units of the sequence
};

class CacheUpdate {
 public:
  // `units`: null, or those that carry over what they read of the past, see carry_over().
  CacheUpdate(const AttentionInputs& in, size_t kv_heads, const std::vector<plan::Sequence>& batch,
              const std::vector<plan::AttentionUnit>* units, const kernels::VectorOps& ops);

  const std::vector<CacheItem>& items() const { return items_; }
  // Those of a sequence that are awaited.
  uint32_t items_of(size_t batch) const { return count_[batch]; }

  // head: scratch of keys.size floats.
  void run(const CacheItem& item, TokenHeads& keys, float* head) const;

  // Whether units carry over old rows, and the old rows of one.
  bool by_units() const { return by_units_; }
  void carry_over(const plan::AttentionUnit& unit) const;

 private:
  void add(const CacheItem& item);
  void add_old_rows(size_t batch, size_t head, size_t begin, size_t end);
  void append(const CacheItem& item, TokenHeads& keys, float* head) const;
  void carry_over(const Cache& cache, size_t batch, size_t head, const kernels::KeyRange& rows) const;
  uint8_t* row(const Cache& cache, size_t batch, size_t head, size_t row) const;

  const AttentionInputs& in_;
  const size_t kv_heads_;
  const std::vector<plan::Sequence>& batch_;
  const kernels::VectorOps& ops_;
  bool by_units_;
  std::vector<CacheItem> items_;
  std::vector<uint32_t> count_;
};

}  // namespace ort_hina::operators
