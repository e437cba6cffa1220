#include "guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ort_hina::native_tests {
namespace {

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(2);
}

bool all_ones(const uint8_t* p, const uint8_t* end) {
  while (p < end && *p == 0xFF) ++p;
  return p == end;
}

}  // namespace

Guarded::Guarded(size_t bytes, Side side, size_t alignment) : bytes_(bytes) {
  const size_t page = page_size();
  room_ = round_up(bytes + 1, page);
  void* p = mmap(nullptr, room_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) give_up("mmap");
  mapping_ = static_cast<uint8_t*>(p);
  if (mprotect(mapping_ + page, room_, PROT_READ | PROT_WRITE) != 0) give_up("mprotect");
  data_ = mapping_ + page + (side == Side::kStart ? 0 : room_ - round_up(bytes, alignment));
  std::memset(mapping_ + page, 0xFF, room_);
}

Guarded::Guarded(Guarded&& other) noexcept
    : mapping_(other.mapping_), room_(other.room_), data_(other.data_), bytes_(other.bytes_) {
  other.mapping_ = nullptr;
}

Guarded::~Guarded() {
  if (mapping_) munmap(mapping_, room_ + 2 * page_size());
}

bool Guarded::surroundings_untouched() const {
  const uint8_t* begin = mapping_ + page_size();
  return all_ones(begin, data_) && all_ones(data_ + bytes_, begin + room_);
}

}  // namespace ort_hina::native_tests
