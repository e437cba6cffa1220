#include "operators/attention_cache.h"

#include <algorithm>
#include <cstring>

#include "operators/elements.h"

namespace ort_hina::operators {
namespace {

// New tokens of an item: enough that handing it out costs nothing beside it.
constexpr size_t kTokens = 32;
// Bytes of an item's old rows: copying them takes some 20 µs.
constexpr size_t kBytes = size_t{1} << 18;

// Cuts [begin, end) into ranges of at most `most`.
template <typename Body>
void cut(size_t begin, size_t end, size_t most, const Body& body) {
  for (; begin < end; begin += most) body(kernels::KeyRange{begin, std::min(end, begin + most)});
}

}  // namespace

CacheUpdate::CacheUpdate(const AttentionInputs& in, size_t kv_heads, const std::vector<plan::Sequence>& batch,
                         const kernels::VectorOps& ops)
    : in_(in), kv_heads_(kv_heads), batch_(batch), ops_(ops), count_(batch.size()) {
  const bool apart = in.keys.past != in.keys.present || in.values.past != in.values.present;
  const size_t most = std::max<size_t>(1, kBytes / ((in.keys.size + in.values.size) * size_of(in.type)));
  for (size_t b = 0; b < batch.size(); ++b) {
    cut(0, batch[b].rows, kTokens, [&](const kernels::KeyRange& tokens) { add({b, 0, tokens, true}); });
    if (!apart) continue;
    const auto of_heads = [&](size_t begin, size_t end) {
      for (size_t head = 0; head < kv_heads; ++head)
        cut(begin, end, most, [&](const kernels::KeyRange& rows) { add({b, head, rows, false}); });
    };
    of_heads(0, batch[b].past);
    of_heads(batch[b].past + batch[b].rows, in.keys.present_length);
  }
}

void CacheUpdate::add(const CacheItem& item) {
  items_.push_back(item);
  ++count_[item.batch];
}

void CacheUpdate::run(const CacheItem& item, TokenHeads& keys, float* head) const {
  if (item.is_new) return append(item, keys, head);
  carry_over(in_.keys, item);
  carry_over(in_.values, item);
}

void CacheUpdate::append(const CacheItem& item, TokenHeads& keys, float* head) const {
  for (size_t token = item.rows.begin; token < item.rows.end; ++token) {
    const size_t place = batch_[item.batch].past + token;
    keys.set(item.batch, token);
    for (size_t h = 0; h < kv_heads_; ++h) {
      uint8_t* const key = row(in_.keys, item.batch, h, place);
      if (keys.as_given()) {
        memcpy(key, keys.given(h), in_.keys.size * size_of(in_.type));
      } else {
        keys.load(h, head);
        narrow(ops_, head, in_.keys.size, key, in_.type);
      }
      const uint8_t* const value = element_at(in_.value.data, in_.value.place(item.batch, token, h), in_.type);
      memcpy(row(in_.values, item.batch, h, place), value, in_.values.size * size_of(in_.type));
    }
  }
}

// Rows of the past; what is beyond the new ones belongs to no key and becomes 0.
void CacheUpdate::carry_over(const Cache& cache, const CacheItem& item) const {
  if (cache.past == cache.present) return;
  const size_t row_bytes = cache.size * size_of(in_.type), bytes = (item.rows.end - item.rows.begin) * row_bytes;
  uint8_t* const to = row(cache, item.batch, item.head, item.rows.begin);
  if (item.rows.begin >= batch_[item.batch].past) {
    memset(to, 0, bytes);
    return;
  }
  const size_t from = ((item.batch * kv_heads_ + item.head) * cache.past_length + item.rows.begin) * cache.size;
  memcpy(to, element_at(cache.past, from, in_.type), bytes);
}

uint8_t* CacheUpdate::row(const Cache& cache, size_t batch, size_t head, size_t row) const {
  return element_at(cache.present, ((batch * kv_heads_ + head) * cache.present_length + row) * cache.size, in_.type);
}

}  // namespace ort_hina::operators
