#include "plan/node_partition.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace ort_hina::plan {
namespace {

// Several experts' matrices are open at a time, so each need not have many items for every thread.
constexpr uint64_t kItemsPerThread = 2;
// Long against the cost of claiming it; short enough that a thread's scratch stays in its cache.
constexpr uint64_t kLeastItem = 64 << 10, kMostItem = 512 << 10;
// Rows of a piece, where they recur after a period: a tile of AMX holds as many.
constexpr uint64_t kPieceRows = 16;
// Longer periods get fewer rows.
constexpr uint64_t kTileBytes = 1 << 20;
// Rows are read in runs of at least so much.
constexpr uint64_t kColumnBytes = 1 << 10;

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }
uint32_t u32(uint64_t x) { return static_cast<uint32_t>(x); }

// Of a matrix that lies on several nodes: the shortest run that it has wholly, and how many nodes. Else no bytes.
struct Interleaving {
  uint64_t granule, nodes;
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

// Rows after which even interleaving repeats: HiNa-MoE's T_x (Equation 4), for granules of any size. Of large granules it is 1,
// since most rows have their like beside them.
uint64_t period_rows(const Interleaving& interleaving, uint64_t row_stride) {
  const uint64_t period = interleaving.granule * interleaving.nodes;
  return interleaving.granule < kPieceRows * row_stride && period ? period / std::gcd(row_stride, period) : 1;
}

}  // namespace

uint64_t item_bytes(const StoredMatrix& matrix, size_t threads) {
  return std::clamp<uint64_t>(matrix.rows * matrix.row_bytes() / (kItemsPerThread * threads), kLeastItem, kMostItem);
}

NodePartition::NodePartition(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, PiecePool* pool,
                             CutTiles* known)
    : rows_are_inputs_(rule.rows_are == RowsAre::kInputs), rows_(matrix.rows), columns_(matrix.columns) {
  if (rows_ == 0 || columns_ == 0) return;
  choose_tiles(map, matrix, rule.item_bytes);
  TileCutter cutter(map, matrix, rule, recur_, pool);
  std::string key;
  size_t key_of_rows = 0;
  for (uint32_t number = 0; number < u32(ceil_div(rows_, tile_rows_)) * across_; ++number) {
    const Tile tile = this->tile(number);
    if (tile.begin == 0) {
      key = cutter.key(tile.row, tile.rows);
      key_of_rows = key.size();
    }
    key.resize(key_of_rows);
    key.append(reinterpret_cast<const char*>(&tile.begin), sizeof tile.begin);
    key.append(reinterpret_cast<const char*>(&tile.columns), sizeof tile.columns);
    if (const CutTile* cut = known->find(key)) {
      add(number, *cut);
      continue;
    }
    const CutTile cut = cutter.cut(tile.row, tile.rows, tile.begin, tile.columns);
    add(number, cut);
    known->keep(key, cut);
  }
}

void NodePartition::add(uint32_t tile, const CutTile& cut) {
  for (const TileItem& item : cut.items) items_.push_back({tile, item.pieces, item.node});
  tile_node_.push_back(cut.most);
  ranks_ = std::max(ranks_, cut.ranks);
  most_rows_ = std::max(most_rows_, cut.most_rows);
  most_columns_ = std::max(most_columns_, cut.most_columns);
  most_listed_bytes_ = std::max(most_listed_bytes_, cut.most_listed_bytes);
}

// Rows that recur after a period are in one piece, so tiles have several periods. Where rows are outputs a tile has all columns.
// Where they are inputs, a tile has as many rows as the partial sums allow, and columns are cut.
void NodePartition::choose_tiles(const PageMap& map, const StoredMatrix& matrix, uint64_t item_bytes) {
  const uint64_t end = matrix.row_begin(rows_ - 1) + matrix.row_bytes();
  const Interleaving interleaving = interleaving_of(map, matrix.begin, end);
  const uint64_t nodes = interleaving.nodes, recur = period_rows(interleaving, matrix.row_stride);
  recur_ = u32(std::min<uint64_t>(recur, rows_));
  // A tile lies on all nodes where granules are small against it, else on one.
  const uint64_t tile_bytes = item_bytes * (interleaving.granule < item_bytes ? nodes : 1);
  const uint64_t row_bytes = matrix.row_bytes();
  if (!rows_are_inputs_) {
    const uint64_t periods = std::min(kPieceRows, kTileBytes / (recur * row_bytes)), block = periods ? recur * periods : 1;
    const uint64_t wanted = round_up(ceil_div(tile_bytes, row_bytes), block);
    tile_rows_ = u32(std::min<uint64_t>(rows_, wanted));
    tile_columns_ = columns_;
    return;
  }
  const uint64_t affordable = uint64_t{rows_} * matrix.element / (kSumsShare * sizeof(float) * kPartitionTokens);
  const uint64_t parts = std::min<uint64_t>(kMaxParts, affordable);
  const uint64_t bands = std::max<uint64_t>(1, parts / nodes);
  tile_rows_ = u32(std::min<uint64_t>(rows_, round_up(ceil_div(rows_, bands), std::min<uint64_t>(recur, 64))));
  bands_ = u32(ceil_div(rows_, tile_rows_));
  const uint64_t columns = round_up(ceil_div(tile_bytes, uint64_t{tile_rows_} * matrix.element), kColumnBytes / matrix.element);
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
