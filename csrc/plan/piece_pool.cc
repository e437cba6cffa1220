#include "plan/piece_pool.h"

namespace ort_hina::plan {
namespace {

template <typename T>
void append_bytes(std::string* key, const std::vector<T>& items) {
  key->append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
}

}  // namespace

uint32_t PiecePool::intern(const std::vector<Piece>& pieces, const std::vector<uint32_t>& listed) {
  std::string key;
  append_bytes(&key, pieces);
  append_bytes(&key, listed);
  const auto [at, added] = ids_.try_emplace(std::move(key), static_cast<uint32_t>(ranges_.size()));
  if (!added) return at->second;
  ranges_.push_back({static_cast<uint32_t>(pieces_.size()), static_cast<uint32_t>(pieces.size())});
  for (Piece piece : pieces) {
    if (piece.step == 0) piece.list += static_cast<uint32_t>(listed_.size());
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

}  // namespace ort_hina::plan
