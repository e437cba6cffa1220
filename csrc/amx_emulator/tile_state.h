// The AMX state of one thread: configuration and tiles.
#pragma once
#include <stdint.h>

namespace ort_hina::amx_emulator {

// Palette 1, the only one there is: 8 tiles of 16 rows of 64 bytes.
constexpr int kTiles = 8;
constexpr int kMaxRows = 16;
constexpr int kRowBytes = 64;
constexpr int kMaxPalette = 1;

struct alignas(64) TileState {
  uint8_t data[kTiles][kMaxRows][kRowBytes];
  uint8_t palette;  // 0: not configured
  uint8_t start_row;
  uint8_t rows[kTiles];
  uint16_t colsb[kTiles];
};

// Before any thread uses its state.
void prepare_thread_states();

// The calling thread's; zeros, as the hardware's, where it is new. May be called in a signal handler.
TileState& thread_state();

}  // namespace ort_hina::amx_emulator
