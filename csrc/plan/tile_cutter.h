// What each node has of one tile of a matrix (plan/node_partition.h).
#pragma once
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "plan/page_map.h"
#include "plan/piece_pool.h"
#include "plan/stored_matrix.h"

namespace ort_hina::plan {

enum class RowsAre : uint8_t { kOutputs, kInputs };

struct PartitionRule {
  RowsAre rows_are;
  // Columns are cut at multiples of this, which leaves up to half of it on the wrong side of a page's end.
  uint32_t column_step;
  uint64_t item_bytes;  // what a node should have of a tile
};

struct TileItem {
  uint32_t pieces;  // id in the pool
  Node node;        // kUnknownNode: any may do it
};

struct CutTile {
  std::vector<TileItem> items;  // nodes ascending
  Node most = kUnknownNode;     // the node with most of it, if that is clearly more than others have
  uint32_t ranks = 1;           // partial sums of the tile (rows are inputs), or of a row
  // The most that a piece has.
  uint32_t most_rows = 0, most_columns = 0;
  uint64_t most_listed_bytes = 0;
};

// Tiles that were cut before, of any matrix: with even placement they recur, and are cut once. Dropped when all is cut.
class CutTiles {
 public:
  const CutTile* find(const std::string& key) const;  // null: not there
  void keep(const std::string& key, const CutTile& tile);

 private:
  std::unordered_map<std::string, CutTile> tiles_;
};

class TileCutter {
 public:
  // recur: rows after which the placement repeats, if it does.
  TileCutter(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, uint32_t recur, PiecePool* pool);

  // Rows [row, row + rows) × columns [begin, begin + columns).
  CutTile cut(uint32_t row, uint32_t rows, uint32_t begin, uint32_t columns);

  // Equal for rows with equal columns, cut at equal columns: where the runs that hold them end, and on which nodes.
  std::string key(uint32_t row, uint32_t rows);

 private:
  // Columns of one row on one node.
  struct Segment {
    Node node;
    uint8_t first;
    uint16_t rank, ranks;
    uint32_t begin, end;  // from the tile's first column
    uint32_t row;         // from the tile's first

    auto kind() const { return std::tie(node, begin, end, rank, ranks, first); }
    uint64_t place() const { return uint64_t{node} << 32 | begin; }
    bool operator<(const Segment& other) const {
      if (place() != other.place()) return place() < other.place();
      if (end != other.end) return end < other.end;
      const auto rest = [](const Segment& s) { return std::tie(s.rank, s.ranks, s.first, s.row); };
      return rest(*this) < rest(other);
    }
  };

  uint64_t row_begin(uint32_t row) const;
  size_t find(uint64_t byte);
  bool add_whole_tile();
  uint32_t column_of(uint64_t byte, uint64_t row) const;
  void cut_row(uint32_t row);
  void set_ranks(size_t from);
  void rank_in_row(size_t from);
  void rank_in_tile();
  void add_items();
  void add_pieces(size_t begin, size_t end);
  size_t progression_end(size_t from, size_t to) const;
  size_t progressions(size_t from, size_t to) const;
  bool recurs(size_t from, size_t to) const;
  size_t arrange_rows(size_t from, size_t to);
  void add_rows(size_t from, size_t to);
  void add_piece(const Segment& segment, uint32_t step, uint32_t rows);

  const PageMap& map_;
  const StoredMatrix& matrix_;
  const PartitionRule& rule_;
  const uint32_t recur_;
  PiecePool* const pool_;
  size_t run_;  // that held the byte which was last asked for
  uint32_t row_ = 0, rows_ = 0, begin_ = 0, columns_ = 0;
  CutTile tile_;
  std::vector<Segment> segments_;
  std::vector<Node> nodes_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> listed_;
};

}  // namespace ort_hina::plan
