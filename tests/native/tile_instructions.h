// AMX instructions of this program's own, in assembly: its units are compiled for any x86-64 CPU. Each says what memory it
// touches, which gcc's intrinsics do not do completely.
#pragma once
#include <cstdint>
#include <cstring>

namespace ort_hina::native_tests {

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};

  void tile(int t, int r, int bytes) {
    rows[t] = static_cast<uint8_t>(r);
    colsb[t] = static_cast<uint16_t>(bytes);
  }
  bool operator==(const TileConfiguration& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

inline void load_configuration(const TileConfiguration& c) { __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory"); }
inline void store_configuration(TileConfiguration* c) { __asm__ volatile("sttilecfg %0" : "=m"(*c)::"memory"); }
inline void release_tiles() { __asm__ volatile("tilerelease" ::: "memory"); }

template <int Tile>
void load_tile(const void* p, long stride) {
  __asm__ volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
void load_tile_t1(const void* p, long stride) {
  __asm__ volatile("tileloaddt1 (%0,%1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
void store_tile(void* p, long stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(p), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile) : "memory");
}

template <int C, int A, int B>
void dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B) : "memory");
}

}  // namespace ort_hina::native_tests
