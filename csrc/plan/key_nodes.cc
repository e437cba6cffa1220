#include "plan/key_nodes.h"

#include <algorithm>
#include <utility>

namespace ort_hina::plan {
namespace {

size_t rows_told(const StoredRows& rows) {
  return rows.map->bytes() > rows.begin ? (rows.map->bytes() - rows.begin) / rows.row_bytes : 0;
}

class Votes {
 public:
  void clear() { votes_.clear(); }

  // Bytes of rows [begin, end), run by run.
  void add(const StoredRows& rows, size_t begin, size_t end) {
    const uint64_t first = rows.begin + begin * rows.row_bytes, last = rows.begin + end * rows.row_bytes;
    const std::vector<PageMap::Run>& runs = rows.map->runs();
    for (size_t i = rows.map->find(first); i < runs.size() && runs[i].begin < last; ++i)
      if (runs[i].node != kUnknownNode) add(runs[i].node, std::min(last, runs[i].end) - std::max(first, runs[i].begin));
  }

  Node winner() const {
    Node best = kUnknownNode;
    uint64_t most = 0;
    for (const auto& [node, bytes] : votes_)
      if (bytes > most) best = node, most = bytes;
    return best;
  }

 private:
  void add(Node node, uint64_t bytes) {
    for (auto& vote : votes_)
      if (vote.first == node) {
        vote.second += bytes;
        return;
      }
    votes_.emplace_back(node, bytes);
  }

  std::vector<std::pair<Node, uint64_t>> votes_;
};

}  // namespace

size_t KeyNodes::Keys::count(size_t end) const {
  const auto run = std::partition_point(runs.begin(), runs.end(), [&](const kernels::KeyRange& r) { return r.begin < end; });
  if (run == runs.begin()) return 0;
  const size_t i = static_cast<size_t>(run - runs.begin()) - 1;
  return before[i] + std::min(end, runs[i].end) - runs[i].begin;
}

size_t KeyNodes::Keys::at(size_t index) const {
  const size_t i = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), index) - before.begin()) - 1;
  return runs[i].begin + index - before[i];
}

kernels::KeyRange KeyNodes::Keys::run_from(size_t key) const {
  return {key, std::partition_point(runs.begin(), runs.end(), [&](const kernels::KeyRange& r) { return r.end <= key; })->end};
}

void KeyNodes::extend(const StoredRows& keys, const StoredRows& values) {
  const size_t told = std::min(rows_told(keys), rows_told(values));
  Votes votes;
  for (; looked_at_ + kKeysOfNode <= told; looked_at_ += kKeysOfNode) {
    votes.clear();
    votes.add(keys, looked_at_, looked_at_ + kKeysOfNode);
    votes.add(values, looked_at_, looked_at_ + kKeysOfNode);
    append(votes.winner());
  }
}

// The last run goes on without end until another node's begins.
void KeyNodes::append(Node node) {
  if (node == kUnknownNode || node == last_) return;
  const size_t begin = empty() ? 0 : looked_at_;
  if (!empty()) nodes_[last_].runs.back().end = begin;
  if (nodes_.size() <= node) nodes_.resize(node + size_t{1});
  Keys& own = nodes_[node];
  own.before.push_back(own.runs.empty() ? 0 : own.before.back() + own.runs.back().end - own.runs.back().begin);
  own.runs.push_back({begin, SIZE_MAX});
  last_ = node;
}

}  // namespace ort_hina::plan
