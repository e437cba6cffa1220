#include "plan/node_partition.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace ort_hina::plan {
namespace {

// What a node has of a tile: long against the cost of claiming it, short against what a thread does in a call.
constexpr uint64_t kItemBytes = 64 << 10;
// Rows of a piece, where they recur after a period: a tile of AMX holds as many.
constexpr uint64_t kPieceRows = 16;
// Longer periods get fewer rows.
constexpr uint64_t kTileBytes = 1 << 20;
// Rows are read in runs of at least so much.
constexpr uint64_t kColumnBytes = 1 << 10;
// A shorter run of bytes goes with its neighbour.
constexpr uint64_t kFragmentBytes = 64;
// Rows at equal distances, or long ones, are read where they lie. Other ones are copied together first, in blocks of so much.
constexpr uint64_t kProgression = 4;
constexpr uint64_t kLongBytes = 16 << 10;
constexpr uint64_t kListedBytes = 128 << 10;

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }
uint32_t u32(uint64_t x) { return static_cast<uint32_t>(x); }

template <typename T>
void append_bytes(std::string* key, const std::vector<T>& items) {
  key->append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
}

// Of a matrix that lies on several nodes: the shortest run that it has wholly, and how many nodes. Else no bytes.
struct Interleaving {
  uint64_t granule, nodes;
  uint64_t period() const { return granule * nodes; }
};

Interleaving interleaving_of(const PageMap& map, uint64_t begin, uint64_t end) {
  Interleaving found = {UINT64_MAX, 0};
  bool seen[kUnknownNode + 1] = {};
  const size_t last = map.find(end - 1);
  for (size_t i = map.find(begin); i <= last; ++i) {
    const PageMap::Run& run = map.runs()[i];
    if (!seen[run.node]) ++found.nodes;
    seen[run.node] = true;
    if (run.begin >= begin && run.end <= end) found.granule = std::min(found.granule, run.end - run.begin);
  }
  if (found.nodes < 2 || found.granule == UINT64_MAX) return {0, std::max<uint64_t>(1, found.nodes)};
  return found;
}

// Rows after which even interleaving repeats: HiNa-MoE's T_x (Equation 4), for granules of any size.
uint64_t period_rows(uint64_t period, uint64_t row_stride) { return period ? period / std::gcd(row_stride, period) : 1; }

}  // namespace

uint32_t PiecePool::intern(const std::vector<Piece>& pieces, const std::vector<uint32_t>& listed) {
  std::string key;
  append_bytes(&key, pieces);
  append_bytes(&key, listed);
  const auto [at, added] = ids_.try_emplace(std::move(key), u32(ranges_.size()));
  if (!added) return at->second;
  ranges_.push_back({u32(pieces_.size()), u32(pieces.size())});
  for (Piece piece : pieces) {
    if (piece.step == 0) piece.list += u32(listed_.size());
    pieces_.push_back(piece);
  }
  listed_.insert(listed_.end(), listed.begin(), listed.end());
  return at->second;
}

size_t PiecePool::bytes() const {
  size_t keys = 0;
  for (const auto& [key, id] : ids_) keys += key.size() + sizeof(id);
  return keys + ranges_.size() * sizeof(Range) + pieces_.size() * sizeof(Piece) + listed_.size() * sizeof(uint32_t);
}

// Columns of one row on one node.
struct NodePartition::Segment {
  Node node;
  uint32_t begin, end;  // from the tile's first column
  uint16_t rank, ranks;
  uint8_t first;
  uint32_t row;  // from the tile's first

  auto kind() const { return std::tie(node, begin, end, rank, ranks, first); }
};

// Finds the items of one tile after the other.
class NodePartition::TileBuilder {
 public:
  TileBuilder(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, PiecePool* pool, NodePartition* to)
      : map_(map), matrix_(matrix), rule_(rule), pool_(pool), to_(to), run_(map.find(matrix.begin)) {}

  void add(uint32_t number) {
    tile_ = to_->tile(number);
    segments_.clear();
    if (!whole_tile())
      for (uint32_t row = 0; row < tile_.rows; ++row) cut_row(row);
    if (rule_.rows_are == RowsAre::kInputs) rank_in_tile();
    std::sort(segments_.begin(), segments_.end(),
              [](const Segment& a, const Segment& b) { return std::tuple_cat(a.kind(), std::tie(a.row)) < std::tuple_cat(b.kind(), std::tie(b.row)); });
    add_items(number);
  }

 private:
  uint64_t row_begin(uint32_t row) const {
    return matrix_.row_begin(tile_.row + row) + uint64_t{tile_.begin} * matrix_.element;
  }

  // The run that holds a byte, which mostly is one after the last one that was asked for.
  size_t find(uint64_t byte) {
    if (byte < map_.runs()[run_].begin) run_ = map_.find(byte);
    while (byte >= map_.runs()[run_].end) ++run_;
    return run_;
  }

  // The usual case of large pages: one piece.
  bool whole_tile() {
    const uint64_t begin = row_begin(0), end = row_begin(tile_.rows - 1) + uint64_t{tile_.columns} * matrix_.element;
    const PageMap::Run& run = map_.runs()[find(begin)];
    if (end > run.end) return false;
    for (uint32_t row = 0; row < tile_.rows; ++row) segments_.push_back({run.node, 0, tile_.columns, 0, 1, 1, row});
    return true;
  }

  // The column at which a run that ends at this byte is cut off.
  uint32_t column_of(uint64_t byte, uint64_t row) const {
    const uint64_t step = rule_.column_step, first = tile_.begin;
    const uint64_t absolute = first + (byte - row) / matrix_.element;
    const uint64_t snapped = (absolute + step / 2) / step * step;
    return u32(std::min<uint64_t>(std::max(snapped, first) - first, tile_.columns));
  }

  void cut_row(uint32_t row) {
    const uint64_t begin = row_begin(row), end = begin + uint64_t{tile_.columns} * matrix_.element;
    const uint32_t fragment = u32(ceil_div(kFragmentBytes, matrix_.element));
    const size_t of_row = segments_.size();
    uint32_t column = 0;
    for (size_t i = find(begin); column < tile_.columns; ++i) {
      const PageMap::Run& run = map_.runs()[i];
      const uint32_t to = run.end >= end ? tile_.columns : column_of(run.end, begin);
      const bool joins = segments_.size() > of_row && (segments_.back().node == run.node || to < column + fragment);
      if (joins) segments_.back().end = std::max(to, column);
      else if (to >= std::min(column + fragment, tile_.columns)) segments_.push_back({run.node, column, to, 0, 1, 0, row});
      else continue;  // the next run begins here
      column = std::max(to, column);
    }
    if (rule_.rows_are == RowsAre::kOutputs) rank_in_row(of_row);
  }

  // Ascending nodes of some segments.
  const std::vector<Node>& nodes_from(size_t first) {
    nodes_.clear();
    for (size_t i = first; i < segments_.size(); ++i) nodes_.push_back(segments_[i].node);
    std::sort(nodes_.begin(), nodes_.end());
    nodes_.erase(std::unique(nodes_.begin(), nodes_.end()), nodes_.end());
    return nodes_;
  }

  void set_ranks(size_t from) {
    const std::vector<Node>& nodes = nodes_from(from);
    for (size_t i = from; i < segments_.size(); ++i) {
      const auto at = std::lower_bound(nodes.begin(), nodes.end(), segments_[i].node);
      segments_[i].rank = static_cast<uint16_t>(at - nodes.begin());
      segments_[i].ranks = static_cast<uint16_t>(nodes.size());
    }
    to_->ranks_ = std::max(to_->ranks_, u32(nodes.size()));
  }

  void rank_in_row(size_t from) {
    set_ranks(from);
    for (size_t i = from; i < segments_.size(); ++i)
      segments_[i].first = std::none_of(segments_.begin() + static_cast<ptrdiff_t>(from), segments_.begin() + static_cast<ptrdiff_t>(i),
                                        [&](const Segment& s) { return s.node == segments_[i].node; });
  }

  // Rows add to the same sums, which begin as 0.
  void rank_in_tile() {
    set_ranks(0);
    for (Segment& segment : segments_) segment.first = 0;
  }

  void add_items(uint32_t number) {
    uint64_t most = 0;
    to_->tile_node_.push_back(kUnknownNode);
    for (size_t begin = 0, end; begin < segments_.size(); begin = end) {
      uint64_t columns = 0;
      for (end = begin; end < segments_.size() && segments_[end].node == segments_[begin].node; ++end)
        columns += segments_[end].end - segments_[end].begin;
      const Node node = segments_[begin].node;
      if (columns > most) most = columns, to_->tile_node_.back() = node;
      add_pieces(begin, end);
      to_->items_.push_back({number, pool_->intern(pieces_, listed_), node});
    }
  }

  void add_pieces(size_t begin, size_t end) {
    pieces_.clear();
    listed_.clear();
    for (size_t from = begin, to; from < end; from = to) {
      for (to = from; to < end && segments_[to].kind() == segments_[from].kind(); ++to) {}
      add_rows(from, to);
    }
  }

  // The first segment after a run of rows at equal distances.
  size_t progression_end(size_t from, size_t to) const {
    if (from + 1 == to || segments_[from + 1].row < segments_[from].row) return from + 1;
    const uint32_t step = segments_[from + 1].row - segments_[from].row;
    size_t end = from + 1;
    while (end < to && segments_[end - 1].row + step == segments_[end].row) ++end;
    return end;
  }

  size_t progressions(size_t from, size_t to) const {
    size_t count = 0;
    for (size_t i = from; i < to; i = progression_end(i, to)) ++count;
    return count;
  }

  // Rows beside each other that recur together are at equal distances when taken one by one.
  size_t arrange_rows(size_t from, size_t to) {
    const auto segment = [this](size_t i) { return segments_.begin() + static_cast<ptrdiff_t>(i); };
    const size_t ascending = progressions(from, to);
    if (ascending == 1 || to_->recur_ == 1) return ascending;
    const uint32_t recur = to_->recur_;
    std::sort(segment(from), segment(to), [recur](const Segment& a, const Segment& b) {
      return std::make_pair(a.row % recur, a.row) < std::make_pair(b.row % recur, b.row);
    });
    const size_t recurring = progressions(from, to);
    if (recurring < ascending) return recurring;
    std::sort(segment(from), segment(to), [](const Segment& a, const Segment& b) { return a.row < b.row; });
    return ascending;
  }

  void add_rows(size_t from, size_t to) {
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
      to_->most_listed_bytes_ = std::max(to_->most_listed_bytes_, rows * bytes);
    }
  }

  void add_piece(const Segment& s, uint32_t step, uint32_t rows) {
    Piece piece;
    // The pool compares bytes, those between the members too.
    std::fill_n(reinterpret_cast<char*>(&piece), sizeof(piece), '\0');
    piece.row = s.row, piece.step = step, piece.rows = rows;
    piece.begin = s.begin, piece.end = s.end;
    piece.list = step ? 0 : u32(listed_.size());
    piece.rank = s.rank, piece.ranks = s.ranks, piece.first = s.first;
    pieces_.push_back(piece);
    to_->most_rows_ = std::max(to_->most_rows_, rows);
    to_->most_columns_ = std::max(to_->most_columns_, s.end - s.begin);
  }

  const PageMap& map_;
  const StoredMatrix& matrix_;
  const PartitionRule& rule_;
  PiecePool* pool_;
  NodePartition* to_;
  Tile tile_ = {};
  size_t run_;
  std::vector<Segment> segments_;
  std::vector<Node> nodes_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> listed_;
};

NodePartition::NodePartition(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, PiecePool* pool)
    : rows_are_inputs_(rule.rows_are == RowsAre::kInputs), rows_(matrix.rows), columns_(matrix.columns) {
  if (rows_ == 0 || columns_ == 0) return;
  choose_tiles(map, matrix);
  const uint32_t tiles = u32(ceil_div(rows_, tile_rows_)) * across_;
  TileBuilder builder(map, matrix, rule, pool, this);
  for (uint32_t tile = 0; tile < tiles; ++tile) builder.add(tile);
}

// Rows that recur after a period are in one piece, so tiles have several periods. Where rows are outputs a tile has all columns.
// Where they are inputs, a tile has as many rows as the partial sums allow, and columns are cut.
void NodePartition::choose_tiles(const PageMap& map, const StoredMatrix& matrix) {
  const uint64_t end = matrix.row_begin(rows_ - 1) + matrix.row_bytes();
  const Interleaving interleaving = interleaving_of(map, matrix.begin, end);
  const uint64_t nodes = interleaving.nodes, recur = period_rows(interleaving.period(), matrix.row_stride);
  recur_ = u32(std::min<uint64_t>(recur, rows_));
  const uint64_t row_bytes = matrix.row_bytes();
  if (!rows_are_inputs_) {
    const uint64_t block = recur * std::max<uint64_t>(1, std::min(kPieceRows, kTileBytes / (recur * row_bytes)));
    const uint64_t wanted = round_up(ceil_div(kItemBytes * nodes, row_bytes), block);
    tile_rows_ = u32(std::min<uint64_t>(rows_, wanted));
    tile_columns_ = columns_;
    return;
  }
  const uint64_t parts = std::min<uint64_t>(kMaxParts, uint64_t{rows_} * matrix.element / (32 * kPartitionTokens));
  const uint64_t bands = std::max<uint64_t>(1, parts / nodes);
  tile_rows_ = u32(std::min<uint64_t>(rows_, round_up(ceil_div(rows_, bands), std::min<uint64_t>(recur, 64))));
  bands_ = u32(ceil_div(rows_, tile_rows_));
  const uint64_t columns = round_up(ceil_div(kItemBytes * nodes, uint64_t{tile_rows_} * matrix.element), kColumnBytes / matrix.element);
  tile_columns_ = u32(std::min<uint64_t>(columns_, columns));
  across_ = u32(ceil_div(columns_, tile_columns_));
}

NodePartition::Tile NodePartition::tile(uint32_t number) const {
  const uint32_t band = number / across_, row = band * tile_rows_, begin = number % across_ * tile_columns_;
  return {row, std::min(tile_rows_, rows_ - row), begin, std::min(tile_columns_, columns_ - begin),
          rows_are_inputs_ ? band * ranks_ : 0};
}

Node NodePartition::node_at(uint32_t row, uint32_t column) const {
  return tile_node_[row / tile_rows_ * across_ + column / tile_columns_];
}

}  // namespace ort_hina::plan
