#include "plan/tile_cutter.h"

#include <algorithm>
#include <utility>

namespace ort_hina::plan {
namespace {

// A shorter run of bytes goes with its neighbour.
constexpr uint64_t kFragmentBytes = 64;
// Rows at equal distances, or long ones, are read where they lie. Other ones are copied together first, in blocks of so much.
constexpr uint64_t kProgression = 4;
constexpr uint64_t kLongBytes = 16 << 10;
constexpr uint64_t kListedBytes = 128 << 10;
// A node with less of a tile has not much more of it than others.
constexpr uint64_t kMostPercent = 60;
// Placement that repeats has few kinds of tiles; without a limit those of irregular placement would fill memory for nothing.
constexpr size_t kMostTiles = 4096;

uint32_t u32(uint64_t x) { return static_cast<uint32_t>(x); }

template <typename T>
void append(std::string* key, T value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

const CutTile* CutTiles::find(const std::string& key) const {
  const auto at = tiles_.find(key);
  return at == tiles_.end() ? nullptr : &at->second;
}

void CutTiles::keep(const std::string& key, const CutTile& tile) {
  if (tiles_.size() < kMostTiles) tiles_.emplace(key, tile);
}

TileCutter::TileCutter(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, uint32_t recur, PiecePool* pool)
    : map_(map), matrix_(matrix), rule_(rule), recur_(recur), pool_(pool), run_(map.find(matrix.begin)) {}

CutTile TileCutter::cut(uint32_t row, uint32_t rows, uint32_t begin, uint32_t columns) {
  row_ = row, rows_ = rows, begin_ = begin, columns_ = columns;
  tile_ = CutTile();
  segments_.clear();
  if (add_whole_tile()) return std::move(tile_);
  for (uint32_t r = 0; r < rows; ++r) cut_row(r);
  if (rule_.rows_are == RowsAre::kInputs) rank_in_tile();
  std::sort(segments_.begin(), segments_.end());
  add_items();
  return std::move(tile_);
}

std::string TileCutter::key(uint32_t row, uint32_t rows) {
  const uint64_t begin = matrix_.row_begin(row), end = matrix_.row_begin(row + rows - 1) + matrix_.row_bytes();
  std::string key;
  append(&key, rows);
  append(&key, recur_);
  append(&key, matrix_.columns);
  append(&key, matrix_.element);
  append(&key, matrix_.row_stride);
  append(&key, rule_.rows_are);
  append(&key, rule_.column_step);
  for (size_t i = find(begin);; ++i) {
    const PageMap::Run& run = map_.runs()[i];
    append(&key, std::min(run.end, end) - begin);
    append(&key, run.node);
    if (run.end >= end) return key;
  }
}

uint64_t TileCutter::row_begin(uint32_t row) const { return matrix_.row_begin(row_ + row) + uint64_t{begin_} * matrix_.element; }

// The run that holds a byte, which mostly is one after the last one that was asked for.
size_t TileCutter::find(uint64_t byte) {
  if (byte < map_.runs()[run_].begin) run_ = map_.find(byte);
  while (byte >= map_.runs()[run_].end) ++run_;
  return run_;
}

// The usual case of large pages: one piece.
bool TileCutter::add_whole_tile() {
  const uint64_t begin = row_begin(0), end = row_begin(rows_ - 1) + uint64_t{columns_} * matrix_.element;
  const PageMap::Run& run = map_.runs()[find(begin)];
  if (end > run.end) return false;
  pieces_.clear();
  listed_.clear();
  const bool outputs = rule_.rows_are == RowsAre::kOutputs;
  add_piece({run.node, outputs, 0, 1, 0, columns_, 0}, 1, rows_);
  tile_.items.push_back({pool_->intern(pieces_, listed_), run.node});
  tile_.most = run.node;
  return true;
}

// The column at which a run that ends at this byte is cut off.
uint32_t TileCutter::column_of(uint64_t byte, uint64_t row) const {
  const uint64_t step = rule_.column_step, first = begin_;
  const uint64_t absolute = first + (byte - row) / matrix_.element;
  const uint64_t snapped = (absolute + step / 2) / step * step;
  return u32(std::min<uint64_t>(std::max(snapped, first) - first, columns_));
}

void TileCutter::cut_row(uint32_t row) {
  const uint64_t begin = row_begin(row), end = begin + uint64_t{columns_} * matrix_.element;
  const uint32_t fragment = u32((kFragmentBytes + matrix_.element - 1) / matrix_.element);
  const size_t of_row = segments_.size();
  uint32_t column = 0;
  for (size_t i = find(begin); column < columns_; ++i) {
    const PageMap::Run& run = map_.runs()[i];
    const uint32_t to = run.end >= end ? columns_ : column_of(run.end, begin);
    const bool joins = segments_.size() > of_row && (segments_.back().node == run.node || to < column + fragment);
    if (joins) segments_.back().end = std::max(to, column);
    else if (to >= std::min(column + fragment, columns_)) segments_.push_back({run.node, 0, 0, 1, column, to, row});
    else continue;  // the next run begins here
    column = std::max(to, column);
  }
  if (rule_.rows_are == RowsAre::kOutputs) rank_in_row(of_row);
}

// Partial sums by ascending nodes.
void TileCutter::set_ranks(size_t from) {
  nodes_.clear();
  for (size_t i = from; i < segments_.size(); ++i) nodes_.push_back(segments_[i].node);
  std::sort(nodes_.begin(), nodes_.end());
  nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
  for (size_t i = from; i < segments_.size(); ++i) {
    const auto at = std::lower_bound(nodes_.begin(), nodes_.end(), segments_[i].node);
    segments_[i].rank = static_cast<uint16_t>(at - nodes_.begin());
    segments_[i].ranks = static_cast<uint16_t>(nodes_.size());
  }
  tile_.ranks = std::max(tile_.ranks, u32(nodes_.size()));
}

void TileCutter::rank_in_row(size_t from) {
  if (segments_.size() == from + 1) {
    segments_.back().first = 1;
    return;
  }
  set_ranks(from);
  for (size_t i = from; i < segments_.size(); ++i) {
    segments_[i].first = 1;
    for (size_t before = from; before < i; ++before)
      if (segments_[before].node == segments_[i].node) segments_[i].first = 0;
  }
}

// Rows add to the same sums, which begin as 0.
void TileCutter::rank_in_tile() { set_ranks(0); }

void TileCutter::add_items() {
  uint64_t most = 0, all = 0;
  for (size_t begin = 0, end; begin < segments_.size(); begin = end) {
    uint64_t columns = 0;
    for (end = begin; end < segments_.size() && segments_[end].node == segments_[begin].node; ++end)
      columns += segments_[end].end - segments_[end].begin;
    const Node node = segments_[begin].node;
    if (columns > most) most = columns, tile_.most = node;
    all += columns;
    add_pieces(begin, end);
    tile_.items.push_back({pool_->intern(pieces_, listed_), node});
  }
  if (most * 100 < all * kMostPercent) tile_.most = kUnknownNode;
}

void TileCutter::add_pieces(size_t begin, size_t end) {
  pieces_.clear();
  listed_.clear();
  for (size_t from = begin, to; from < end; from = to) {
    for (to = from; to < end && segments_[to].kind() == segments_[from].kind(); ++to) {}
    add_rows(from, to);
  }
}

// The first segment after a run of rows at equal distances.
size_t TileCutter::progression_end(size_t from, size_t to) const {
  if (from + 1 == to || segments_[from + 1].row < segments_[from].row) return from + 1;
  const uint32_t step = segments_[from + 1].row - segments_[from].row;
  size_t end = from + 1;
  while (end < to && segments_[end - 1].row + step == segments_[end].row) ++end;
  return end;
}

size_t TileCutter::progressions(size_t from, size_t to) const {
  size_t count = 0;
  for (size_t i = from; i < to; i = progression_end(i, to)) ++count;
  return count;
}

// Whether most rows have one that recurs a period after them.
bool TileCutter::recurs(size_t from, size_t to) const {
  size_t pairs = 0, later = from;
  for (size_t i = from; i < to; ++i) {
    const uint32_t next = segments_[i].row + recur_;
    while (later < to && segments_[later].row < next) ++later;
    pairs += later < to && segments_[later].row == next;
  }
  return 2 * pairs >= to - from;
}

// Rows beside each other that recur together are at equal distances when taken one by one. Returns the progressions.
size_t TileCutter::arrange_rows(size_t from, size_t to) {
  const size_t ascending = progressions(from, to);
  if (ascending == 1 || recur_ == 1 || !recurs(from, to)) return ascending;
  const auto first = segments_.begin() + static_cast<ptrdiff_t>(from), last = segments_.begin() + static_cast<ptrdiff_t>(to);
  std::sort(first, last, [this](const Segment& a, const Segment& b) {
    return std::make_pair(a.row % recur_, a.row) < std::make_pair(b.row % recur_, b.row);
  });
  return progressions(from, to);
}

void TileCutter::add_rows(size_t from, size_t to) {
  const size_t progressions = arrange_rows(from, to);
  const uint64_t bytes = uint64_t{segments_[from].end - segments_[from].begin} * matrix_.element;
  if (progressions == 1 || to - from >= kProgression * progressions || bytes >= kLongBytes) {
    for (size_t i = from; i < to;) {
      const size_t end = progression_end(i, to);
      const uint32_t step = end - i > 1 ? segments_[i + 1].row - segments_[i].row : 1;
      add_piece(segments_[i], step, u32(end - i));
      i = end;
    }
    return;
  }
  const size_t block = std::max<uint64_t>(1, kListedBytes / bytes);
  for (size_t i = from; i < to; i += block) {
    const size_t rows = std::min(block, to - i);
    add_piece(segments_[i], 0, u32(rows));
    for (size_t r = 0; r < rows; ++r) listed_.push_back(segments_[i + r].row);
    tile_.most_listed_bytes = std::max(tile_.most_listed_bytes, rows * bytes);
  }
}

void TileCutter::add_piece(const Segment& s, uint32_t step, uint32_t rows) {
  Piece piece;
  // The pool compares bytes, those between the members too.
  std::fill_n(reinterpret_cast<char*>(&piece), sizeof(piece), '\0');
  piece.row = s.row, piece.step = step, piece.rows = rows;
  piece.begin = s.begin, piece.end = s.end;
  piece.list = step ? 0 : u32(listed_.size());
  piece.rank = s.rank, piece.ranks = s.ranks, piece.first = s.first;
  pieces_.push_back(piece);
  tile_.most_rows = std::max(tile_.most_rows, rows);
  tile_.most_columns = std::max(tile_.most_columns, s.end - s.begin);
}

}  // namespace ort_hina::plan
