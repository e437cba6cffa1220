// The part of a thread's life in which it runs kernels that may use AMX tiles.
#pragma once
#include "kernels/table.h"

namespace ort_hina::operators {

// A thread's AMX tile configuration is left as it was found.
class TileScope {
 public:
  explicit TileScope(Isa level) : tiles_(kernels::tile_state(level)) {
    if (tiles_) tiles_->save(configuration_);
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() {
    if (tiles_) tiles_->restore(configuration_);
  }

 private:
  const kernels::TileState* tiles_;
  alignas(64) uint8_t configuration_[64];
};

}  // namespace ort_hina::operators
