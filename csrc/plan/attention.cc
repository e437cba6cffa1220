#include "plan/attention.h"

#include <algorithm>

namespace ort_hina::plan {
namespace {

using kernels::KeyRange;

size_t divided_up(size_t x, size_t by) { return (x + by - 1) / by; }

// The keys up to a query and in its window.
KeyRange reach_of(const AttentionProblem& problem, const Sequence& sequence, size_t query) {
  const size_t position = sequence.past + query;
  const size_t end = problem.causal ? position + 1 : sequence.past + sequence.rows;
  const size_t begin = problem.window && position + 1 > problem.window ? position + 1 - problem.window : 0;
  return {begin, end};
}

KeyRange common(const KeyRange& a, const KeyRange& b) {
  const KeyRange both = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : KeyRange{0, 0};
}

// What any of these queries sees; queries further on see no earlier keys.
KeyRange seen_by(const AttentionProblem& problem, size_t batch, size_t query, size_t queries) {
  const Sequence& sequence = problem.batch[batch];
  if (query >= sequence.rows) return {0, 0};
  const size_t last = std::min(query + queries, sequence.rows) - 1;
  return common({reach_of(problem, sequence, query).begin, reach_of(problem, sequence, last).end}, sequence.seen);
}

// With many queries there are units enough, and partial results of all of them would need much memory.
size_t parts_of(const AttentionProblem& problem, size_t keys, size_t queries_of_block) {
  if (problem.queries > queries_of_block) return 1;
  return std::max<size_t>(1, std::min(kAttentionParts, keys / kAttentionPart));
}

}  // namespace

KeyRange visible_keys(const AttentionProblem& problem, size_t batch, size_t query) {
  const Sequence& sequence = problem.batch[batch];
  if (query >= sequence.rows) return {0, 0};
  return common(reach_of(problem, sequence, query), sequence.seen);
}

AttentionPlan plan_attention(const AttentionProblem& problem) {
  AttentionPlan plan;
  const size_t of_block = std::max<size_t>(1, kAttentionRows / problem.group);
  const size_t blocks = divided_up(problem.queries, of_block);
  for (size_t reversed = 0; reversed < blocks; ++reversed)
    for (size_t b = 0; b < problem.batch.size(); ++b)
      for (size_t head = 0; head < problem.kv_heads; ++head) {
        const size_t query = (blocks - 1 - reversed) * of_block;
        const size_t queries = std::min(of_block, problem.queries - query);
        const KeyRange keys = seen_by(problem, b, query, queries);
        const size_t count = keys.end - keys.begin, parts = parts_of(problem, count, of_block);
        for (size_t part = 0; part < parts; ++part)
          plan.units.push_back({static_cast<uint32_t>(b), static_cast<uint32_t>(head), static_cast<uint32_t>(query),
                                static_cast<uint32_t>(queries),
                                {keys.begin + count * part / parts, keys.begin + count * (part + 1) / parts},
                                static_cast<uint32_t>(part), static_cast<uint32_t>(parts),
                                static_cast<uint32_t>(plan.blocks)});
        const size_t rows = queries * problem.group;
        if (parts > 1) plan.partial_rows += parts * rows;
        plan.most_rows = std::max(plan.most_rows, rows);
        ++plan.blocks;
      }
  return plan;
}

}  // namespace ort_hina::plan
