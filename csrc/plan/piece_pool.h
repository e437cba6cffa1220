// The pieces of weights that a node has of a tile (plan/node_partition.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ort_hina::plan {

// Rows × columns of a tile, all on one node.
struct Piece {
  uint32_t row, step, rows;  // rows row, row + step, ... from the tile's first; step 0: those of PiecePool::listed()
  uint32_t begin, end;       // columns, from the tile's first
  uint32_t list;             // where the listed rows begin
  uint16_t rank, ranks;      // which partial sum of these rows (or of the tile, if rows are inputs) this is, and of how many
  uint8_t first;             // nothing else has been added to this partial sum of these rows before
};

// The pieces of items. Tiles of regular placement have the same ones again and again, which are kept once.
class PiecePool {
 public:
  // `listed`: the rows of those with step 0, whose `list` counts from its begin.
  uint32_t intern(const std::vector<Piece>& pieces, const std::vector<uint32_t>& listed);
  // No more will be interned.
  void freeze() { ids_.clear(); }

  const Piece* begin(uint32_t id) const { return pieces_.data() + ranges_[id].begin; }
  const Piece* end(uint32_t id) const { return begin(id) + ranges_[id].count; }
  const uint32_t* listed(const Piece& piece) const { return listed_.data() + piece.list; }
  size_t bytes() const;

 private:
  struct Range {
    uint32_t begin, count;
  };
  std::vector<Range> ranges_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> listed_;
  std::unordered_map<std::string, uint32_t> ids_;
};

}  // namespace ort_hina::plan
