#include "plan/row_slices.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ort_hina::plan {
namespace {

// The last rows of each node's share: row r is the first node's whose end is above r.
std::vector<uint64_t> shares_of(uint64_t rows, const std::vector<double>& weights) {
  double sum = 0, reached = 0;
  for (double w : weights) {
    if (!(w >= 0)) throw std::invalid_argument("row slices: expected weights of at least 0, got " + std::to_string(w));
    sum += w;
  }
  if (!(sum > 0) || !std::isfinite(sum)) throw std::invalid_argument("row slices: expected a node with a weight above 0");
  std::vector<uint64_t> ends;
  for (double w : weights) {
    reached += w;
    ends.push_back(std::min(rows, static_cast<uint64_t>(std::llround(static_cast<double>(rows) * (reached / sum)))));
  }
  return ends;
}

// For each page and node, the bytes that are meant for it.
class Votes {
 public:
  Votes(uint64_t bytes, size_t nodes, const PageGrid& grid)
      : grid_(grid), nodes_(nodes), pages_((grid.phase + bytes + grid.page - 1) / grid.page), votes_(pages_ * nodes) {}

  void add(uint64_t begin, uint64_t end, size_t node) {
    for (uint64_t at = begin; at < end;) {
      const uint64_t page = (grid_.phase + at) / grid_.page;
      const uint64_t stop = std::min(end, (page + 1) * grid_.page - grid_.phase);
      votes_[page * nodes_ + node] += stop - at;
      at = stop;
    }
  }

  size_t pages() const { return pages_; }
  // kUnknownNode: nobody wants it.
  Node winner(size_t page) const {
    const auto begin = votes_.begin() + static_cast<ptrdiff_t>(page * nodes_);
    const auto most = std::max_element(begin, begin + static_cast<ptrdiff_t>(nodes_));
    return *most ? static_cast<Node>(most - begin) : kUnknownNode;
  }

 private:
  const PageGrid grid_;
  const size_t nodes_, pages_;
  std::vector<uint64_t> votes_;
};

void vote(const StoredMatrix& m, const std::vector<double>& weights, Votes* votes) {
  const std::vector<uint64_t> ends = shares_of(m.rows, weights);
  uint64_t row = 0;
  for (size_t node = 0; node < ends.size(); ++node)
    if (m.row_stride == m.row_bytes()) {
      votes->add(m.row_begin(row), m.row_begin(ends[node]), node);
      row = ends[node];
    } else {
      for (; row < ends[node]; ++row) votes->add(m.row_begin(row), m.row_begin(row) + m.row_bytes(), node);
    }
}

void check(const StoredMatrix& m, uint64_t bytes) {
  const uint64_t end = m.rows ? m.row_begin(m.rows - 1) + m.row_bytes() : m.begin;
  if (end > bytes || (m.rows && m.row_stride < m.row_bytes()))
    throw std::invalid_argument("row slices: a matrix ends at byte " + std::to_string(end) + " of a range of " +
                                std::to_string(bytes) + ", with rows of " + std::to_string(m.row_bytes()) + " bytes " +
                                std::to_string(m.row_stride) + " apart");
}

void vote_by_pages(const std::vector<double>& weights, Votes* votes, uint64_t bytes, const PageGrid& grid) {
  const std::vector<uint64_t> ends = shares_of(votes->pages(), weights);
  const auto byte = [&](uint64_t page) { return page ? std::min(bytes, page * grid.page - grid.phase) : 0; };
  for (size_t node = 0; node < ends.size(); ++node) votes->add(byte(node ? ends[node - 1] : 0), byte(ends[node]), node);
}

// Pages that nobody wants go with the one before them, those at the begin with the one after.
std::vector<Node> owners(const Votes& votes) {
  std::vector<Node> owner(votes.pages());
  for (size_t page = 0; page < owner.size(); ++page) {
    owner[page] = votes.winner(page);
    if (owner[page] == kUnknownNode && page) owner[page] = owner[page - 1];
  }
  const auto known = std::find_if(owner.begin(), owner.end(), [](Node n) { return n != kUnknownNode; });
  if (known != owner.end()) std::fill(owner.begin(), known, *known);
  return owner;
}

}  // namespace

std::vector<NodeSlice> row_slices(const std::vector<StoredMatrix>& matrices, uint64_t bytes, const std::vector<double>& weights,
                                  const PageGrid& grid) {
  if (weights.size() > kUnknownNode || grid.page == 0 || grid.phase >= grid.page)
    throw std::invalid_argument("row slices: expected at most 255 nodes, and a phase below the page size");
  if (bytes == 0) return {};
  Votes votes(bytes, weights.size(), grid);
  bool voted = false;
  for (const StoredMatrix& m : matrices) {
    check(m, bytes);
    vote(m, weights, &votes);
    voted = voted || (m.rows && m.row_bytes());
  }
  if (!voted) vote_by_pages(weights, &votes, bytes, grid);
  std::vector<NodeSlice> slices;
  const std::vector<Node> owner = owners(votes);
  for (size_t page = 0; page < owner.size(); ++page) {
    const uint64_t end = std::min(bytes, (page + 1) * grid.page - grid.phase);
    if (!slices.empty() && slices.back().node == owner[page]) slices.back().end = end;
    else slices.push_back({slices.empty() ? 0 : slices.back().end, end, owner[page]});
  }
  return slices;
}

}  // namespace ort_hina::plan
