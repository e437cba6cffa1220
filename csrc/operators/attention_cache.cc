#include "operators/attention_cache.h"

#include <algorithm>
#include <cstring>

#include "operators/elements.h"
#include "operators/stream_copy.h"

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
                         const std::vector<plan::AttentionUnit>* units, const kernels::VectorOps& ops)
    : in_(in), kv_heads_(kv_heads), batch_(batch), ops_(ops), count_(batch.size()) {
  const bool apart = !in_place(in);
  by_units_ = apart && units;
  for (size_t b = 0; b < batch.size(); ++b)
    cut(0, batch[b].rows, kTokens, [&](const kernels::KeyRange& tokens) { add({b, 0, tokens, true, true}); });
  if (!apart) return;
  // Of each head, where the rows that units carry over begin and end.
  std::vector<kernels::KeyRange> carried(batch.size() * kv_heads);
  if (by_units_)
    for (const plan::AttentionUnit& unit : *units) {
      kernels::KeyRange& own = carried[unit.batch * kv_heads + unit.head];
      own = unit.part ? kernels::KeyRange{own.begin, unit.keys.end} : unit.keys;
    }
  for (size_t b = 0; b < batch.size(); ++b)
    for (size_t head = 0; head < kv_heads; ++head) {
      const size_t past = batch[b].past;
      const kernels::KeyRange& by_unit = carried[b * kv_heads + head];
      add_old_rows(b, head, 0, std::min(past, by_unit.begin));
      add_old_rows(b, head, std::min(past, by_unit.end), past);
      add_old_rows(b, head, past + batch[b].rows, in.keys.present_length);
    }
}

void CacheUpdate::add(const CacheItem& item) {
  items_.push_back(item);
  count_[item.batch] += item.awaited;
}

void CacheUpdate::add_old_rows(size_t batch, size_t head, size_t begin, size_t end) {
  const size_t most = std::max<size_t>(1, kBytes / ((in_.keys.size + in_.values.size) * size_of(in_.type)));
  cut(begin, end, most, [&](const kernels::KeyRange& rows) { add({batch, head, rows, false, !by_units_}); });
}

void CacheUpdate::run(const CacheItem& item, TokenHeads& keys, float* head) const {
  if (item.is_new) return append(item, keys, head);
  carry_over(in_.keys, item.batch, item.head, item.rows);
  carry_over(in_.values, item.batch, item.head, item.rows);
}

void CacheUpdate::carry_over(const plan::AttentionUnit& unit) const {
  const kernels::KeyRange old = {unit.keys.begin, std::min(unit.keys.end, batch_[unit.batch].past)};
  if (old.begin >= old.end) return;
  carry_over(in_.keys, unit.batch, unit.head, old);
  carry_over(in_.values, unit.batch, unit.head, old);
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
void CacheUpdate::carry_over(const Cache& cache, size_t batch, size_t head, const kernels::KeyRange& rows) const {
  if (cache.past == cache.present) return;
  const size_t row_bytes = cache.size * size_of(in_.type), bytes = (rows.end - rows.begin) * row_bytes;
  uint8_t* const to = row(cache, batch, head, rows.begin);
  if (rows.begin >= batch_[batch].past) {
    memset(to, 0, bytes);
    return;
  }
  const size_t from = ((batch * kv_heads_ + head) * cache.past_length + rows.begin) * cache.size;
  const uint8_t* const old = element_at(cache.past, from, in_.type);
  by_units_ ? stream_copy(to, old, bytes) : static_cast<void>(memcpy(to, old, bytes));
}

uint8_t* CacheUpdate::row(const Cache& cache, size_t batch, size_t head, size_t row) const {
  return element_at(cache.present, ((batch * kv_heads_ + head) * cache.present_length + row) * cache.size, in_.type);
}

}  // namespace ort_hina::operators
