// A matrix of weights cut by the nodes on which its pages lie, so that threads of a node read what is theirs. Pure arithmetic
// on the page map: no rule of placement is assumed. Where pages are interleaved evenly, what comes out are the data segments of
// HiNa-MoE's Equations 3-5: rows that recur after a period, cut at the same columns.
//
// The matrix is first cut into tiles. What a tile has on one node is an item, made of pieces: rows × columns. Rows on one node
// as a whole are done by it alone; rows that cross nodes are cut, and every node leaves a partial sum of its own. Partial sums
// are told apart by numbers that depend on the map alone, so they are summed in the same order on every run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/tile_cutter.h"

namespace ort_hina::plan {

// So many tokens' partial sums cost less than reading weights from other nodes, whatever the matrix. Those of more tokens are
// worth it while they are at most this share of the weights. Where rows are inputs every piece contributes to its columns' sums,
// so tiles are few enough that kPartitionTokens keep to the share.
constexpr uint32_t kPartitionTokens = 16, kSumsShare = 8;
// The most partial sums of an output, unless there are more nodes.
constexpr uint32_t kMaxParts = 32;

// What a node should have of a tile of this matrix, for so many threads.
uint64_t item_bytes(const StoredMatrix& matrix, size_t threads);

class NodePartition {
 public:
  struct Item {
    uint32_t tile;
    uint32_t pieces;  // id in the pool
    Node node;        // kUnknownNode: any may do it
  };
  struct Tile {
    uint32_t row, rows, begin, columns;
    uint32_t part;  // rows are inputs: the first of the tile's partial sums. Else 0
  };

  // `map` covers the whole matrix. Empty matrices have no items.
  NodePartition(const PageMap& map, const StoredMatrix& matrix, const PartitionRule& rule, PiecePool* pool, CutTiles* known);

  const std::vector<Item>& items() const { return items_; }  // tile by tile, nodes ascending within
  Tile tile(uint32_t number) const;
  // Partial sums of every output; those that an output does not have are 0.
  uint32_t parts() const { return bands_ * ranks_; }
  // Partial sums of a tile (rows are inputs), or of a row.
  uint32_t ranks() const { return ranks_; }
  // The most that a piece has.
  uint32_t most_rows() const { return most_rows_; }
  uint32_t most_columns() const { return most_columns_; }
  uint64_t most_listed_bytes() const { return most_listed_bytes_; }
  // Where most of the tile lies that holds this row and column; kUnknownNode where no node has clearly most of it.
  Node node_at(uint32_t row, uint32_t column) const;
  bool rows_are_inputs() const { return rows_are_inputs_; }
  uint32_t rows() const { return rows_; }
  uint32_t columns() const { return columns_; }

 private:
  void choose_tiles(const PageMap& map, const StoredMatrix& matrix, uint64_t item_bytes);
  void add(uint32_t tile, const CutTile& cut);

  bool rows_are_inputs_;
  uint32_t rows_, columns_;
  uint32_t tile_rows_ = 1, tile_columns_ = 1, across_ = 1;  // across: tiles beside each other
  uint32_t bands_ = 1;  // of partial sums: tiles below each other where rows are inputs, else 1
  uint32_t ranks_ = 1;
  uint32_t recur_ = 1;  // rows after which the placement repeats, if it does
  uint32_t most_rows_ = 0, most_columns_ = 0;
  uint64_t most_listed_bytes_ = 0;
  std::vector<Item> items_;
  std::vector<Node> tile_node_;
};

}  // namespace ort_hina::plan
