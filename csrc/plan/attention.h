// From the lengths of a batch to units of attention, pure arithmetic. A unit is a block of queries of one key/value head,
// with all query heads of its group, against a part of the keys, so that keys and values are read once for a group.
// Cuts depend on lengths, and where keys lie on several NUMA nodes on their places, never on threads: the same call gives the
// same bits on any number of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "plan/key_nodes.h"

namespace ort_hina::plan {

// Rows (queries × heads of a group) of a unit: enough that a key is used often while it is in the cache.
constexpr size_t kAttentionRows = 64;
// The fewest keys that are worth a unit of their own.
constexpr size_t kAttentionPart = 512;
// The most parts that the keys of a block of queries are cut into, besides one for each NUMA node; bounds the memory of their
// partial results.
constexpr size_t kAttentionParts = 64;

struct Sequence {
  size_t past;  // keys before the first new one
  size_t rows;  // new tokens; the queries from here on are padding and see nothing
  kernels::KeyRange seen = {0, SIZE_MAX};  // no query sees a key outside
};

struct AttentionProblem {
  std::vector<Sequence> batch;
  size_t queries;  // of each sequence, padding included
  size_t kv_heads, group;
  bool causal;
  size_t window;  // keys that a query sees, itself included; 0: all
};

struct AttentionUnit {
  uint32_t batch, head;  // head: of keys and values
  uint32_t query, queries;
  kernels::KeyRange keys;  // of these, those that lie on `node`
  uint32_t part, parts;  // of this block of queries
  uint32_t block;        // number of the block of queries, over all heads
  Node node = kUnknownNode;  // unknown: all keys
};

struct AttentionPlan {
  std::vector<AttentionUnit> units;  // parts of a block beside each other; where queries are many, the longest first
  size_t blocks = 0;
  size_t partial_rows = 0;  // rows of all units of blocks with several parts, 0 if there are none
  size_t most_rows = 0;     // of a unit
  size_t most_parts = 1;    // of a block
};

// The keys that a query of a sequence sees.
kernels::KeyRange visible_keys(const AttentionProblem& problem, size_t batch, size_t query);

// Whether so many queries of each sequence make one block, whose keys may be cut. With more of them there are units enough, and
// partial results of all would need much memory.
bool cuts_keys(size_t queries, size_t group);

// Every query of every head is in one block, and the parts of a block cover what its queries see. `nodes`: null, or where the
// keys of each head of each sequence lie; then no part has keys of two nodes.
AttentionPlan plan_attention(const AttentionProblem& problem, const std::vector<KeyNodes>* nodes = nullptr);

}  // namespace ort_hina::plan
