#include "operators/cache_placement.h"

#include <algorithm>
#include <tuple>

#include "operators/attention_lengths.h"
#include "operators/elements.h"

namespace ort_hina::operators {
namespace {

size_t row_bytes(const Cache& cache, DataType type) { return cache.size * size_of(type); }

// Of keys and values that queries of the call see.
size_t bytes_read(const AttentionInputs& in, const AttentionRule& rule) {
  size_t keys = 0;
  for (size_t b = 0; b < in.batch; ++b) keys += std::min(keys_of(in, b), rule.window ? rule.window : SIZE_MAX);
  return keys * rule.kv_heads * (row_bytes(in.keys, in.type) + row_bytes(in.values, in.type));
}

// Nothing of what lies there now was there before.
bool begins_anew(const AttentionInputs& in) {
  for (size_t b = 0; b < in.batch; ++b)
    if (sequence_of(in, b).past) return false;
  return true;
}

}  // namespace

bool CachePlacement::Buffers::operator==(const Buffers& other) const {
  const auto all = [](const Buffers& b) {
    return std::tie(b.keys, b.values, b.type, b.batch, b.kv_heads, b.length, b.key_size, b.value_size);
  };
  return all(*this) == all(other);
}

CachePlacement::Lease CachePlacement::look(const AttentionInputs& in, const AttentionRule& rule) {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || refused_) return {};
  const Buffers buffers = {in.keys.present, in.values.present, in.type,      in.batch,
                           rule.kv_heads,   in.keys.present_length, in.keys.size, in.values.size};
  if (!in_place(in)) {
    forget({});
    return {};
  }
  // An address may have been freed and given out again between two texts.
  if (!(buffers == buffers_) || begins_anew(in)) {
    forget(buffers);
    return {};
  }
  if (!plan::cuts_keys(in.queries, rule.group()) || bytes_read(in, rule) < least_bytes_) return {};
  if (!ask(in, rule.kv_heads)) {
    refused_ = true;
    return {};
  }
  const bool known = std::any_of(nodes_.begin(), nodes_.end(), [](const plan::KeyNodes& nodes) { return !nodes.empty(); });
  if (!known) return {};
  return {std::move(lock), {&nodes_, &threads_}};
}

void CachePlacement::forget(const Buffers& buffers) {
  buffers_ = buffers;
  heads_.assign(buffers.batch * buffers.kv_heads, {});
  nodes_.assign(buffers.batch * buffers.kv_heads, {});
}

// False: the kernel does not answer.
bool CachePlacement::ask(const AttentionInputs& in, size_t kv_heads) {
  const size_t key_bytes = row_bytes(in.keys, in.type), value_bytes = row_bytes(in.values, in.type);
  for (size_t b = 0; b < in.batch; ++b)
    for (size_t head = b * kv_heads; head < (b + 1) * kv_heads; ++head) {
      Head& own = heads_[head];
      const size_t rows = sequence_of(in, b).past;
      if (!ask(in.keys, in.type, head, rows, &own.keys) || !ask(in.values, in.type, head, rows, &own.values)) return false;
      nodes_[head].extend({&own.keys, 0, key_bytes}, {&own.values, 0, value_bytes});
    }
  return true;
}

// Pages with rows before `rows`, of which none was asked about: all of them have been written to, so they are there.
bool CachePlacement::ask(const Cache& cache, DataType type, size_t head, size_t rows, plan::PageMap* map) {
  const size_t bytes = row_bytes(cache, type), page = pages_.page_bytes;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(cache.present) + head * cache.present_length * bytes;
  const uintptr_t end = begin + cache.present_length * bytes, known = begin + map->bytes(), wanted = begin + rows * bytes;
  if (known >= wanted) return true;
  const uintptr_t first = known / page * page, count = (wanted - first + page - 1) / page;
  answers_.resize(count);
  if (!pages_.ask(first, count, answers_.data())) return false;
  for (size_t i = 0; i < count; ++i) {
    const uintptr_t from = std::max(known, first + i * page), to = std::min(end, first + (i + 1) * page);
    map->append(to - from, answers_[i]);
  }
  return true;
}

}  // namespace ort_hina::operators
