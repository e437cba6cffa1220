// Memory between two pages that nothing may touch: one byte too many ends the program.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ort_hina::native_tests {

enum class Side { kStart, kEnd };

// Every byte is 0xff at first, which makes NaNs of all floating-point types.
class Guarded {
 public:
  // With Side::kStart the byte before the first one is forbidden, with Side::kEnd the one behind the last (behind the next
  // multiple of `alignment`).
  Guarded(size_t bytes, Side side, size_t alignment = 1);
  ~Guarded();
  Guarded(Guarded&& other) noexcept;
  Guarded& operator=(Guarded&&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Are the bytes around, up to the forbidden pages, as they were?
  bool surroundings_untouched() const;

 private:
  uint8_t* mapping_;
  size_t room_;  // without the forbidden pages
  uint8_t* data_;
  size_t bytes_;
};

}  // namespace ort_hina::native_tests
