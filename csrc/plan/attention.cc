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

size_t queries_of_block(size_t group) { return std::max<size_t>(1, kAttentionRows / group); }

// A part of the keys of a block of queries.
struct KeyPart {
  KeyRange keys;
  Node node;
};

size_t parts_of(size_t keys, size_t most) { return std::max<size_t>(1, std::min(most, keys / kAttentionPart)); }

// Each node's keys by themselves, as many in one part as in another.
void cut_by_nodes(const KeyNodes& nodes, const KeyRange& keys, std::vector<KeyPart>* parts) {
  for (size_t node = 0; node < nodes.nodes().size(); ++node) {
    const KeyNodes::Keys& own = nodes.nodes()[node];
    const size_t first = own.count(keys.begin), count = own.count(keys.end) - first;
    if (count == 0) continue;
    const size_t of_node = parts_of(count, kAttentionParts * count / (keys.end - keys.begin));
    for (size_t part = 0; part < of_node; ++part) {
      const size_t begin = first + count * part / of_node, end = first + count * (part + 1) / of_node;
      parts->push_back({{own.at(begin), own.at(end - 1) + 1}, static_cast<Node>(node)});
    }
  }
}

void cut_by_length(const KeyRange& keys, size_t most, std::vector<KeyPart>* parts) {
  const size_t count = keys.end - keys.begin, of_block = parts_of(count, most);
  for (size_t part = 0; part < of_block; ++part)
    parts->push_back({{keys.begin + count * part / of_block, keys.begin + count * (part + 1) / of_block}, kUnknownNode});
}

}  // namespace

KeyRange visible_keys(const AttentionProblem& problem, size_t batch, size_t query) {
  const Sequence& sequence = problem.batch[batch];
  if (query >= sequence.rows) return {0, 0};
  return common(reach_of(problem, sequence, query), sequence.seen);
}

bool cuts_keys(size_t queries, size_t group) { return queries <= queries_of_block(group); }

AttentionPlan plan_attention(const AttentionProblem& problem, const std::vector<KeyNodes>* nodes) {
  AttentionPlan plan;
  const size_t of_block = queries_of_block(problem.group);
  const size_t blocks = divided_up(problem.queries, of_block);
  const bool cuts = cuts_keys(problem.queries, problem.group);
  std::vector<KeyPart> parts;
  for (size_t reversed = 0; reversed < blocks; ++reversed)
    for (size_t b = 0; b < problem.batch.size(); ++b)
      for (size_t head = 0; head < problem.kv_heads; ++head) {
        const size_t query = (blocks - 1 - reversed) * of_block;
        const size_t queries = std::min(of_block, problem.queries - query);
        const KeyRange keys = seen_by(problem, b, query, queries);
        const KeyNodes* const places = nodes && cuts ? &(*nodes)[b * problem.kv_heads + head] : nullptr;
        parts.clear();
        if (places && !places->empty() && keys.begin < keys.end) cut_by_nodes(*places, keys, &parts);
        else cut_by_length(keys, cuts ? kAttentionParts : 1, &parts);
        for (size_t part = 0; part < parts.size(); ++part)
          plan.units.push_back({static_cast<uint32_t>(b), static_cast<uint32_t>(head), static_cast<uint32_t>(query),
                                static_cast<uint32_t>(queries), parts[part].keys, static_cast<uint32_t>(part),
                                static_cast<uint32_t>(parts.size()), static_cast<uint32_t>(plan.blocks), parts[part].node});
        const size_t rows = queries * problem.group;
        if (parts.size() > 1) plan.partial_rows += parts.size() * rows;
        plan.most_rows = std::max(plan.most_rows, rows);
        plan.most_parts = std::max(plan.most_parts, parts.size());
        ++plan.blocks;
      }
  return plan;
}

}  // namespace ort_hina::plan
