// References: Intel SDM volume 1, "Programming with Intel AMX"; volume 2, the instructions' pages and "Intel AMX Instruction
// Exception Classes".
#include "amx_emulator/execute.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "amx_emulator/products.h"
#include "amx_emulator/tile_state.h"

namespace ort_hina::amx_emulator {
namespace {

struct OpInfo {
  const char* name;
  unsigned feature;
};

constexpr OpInfo kOps[AMX_EMU_OP_COUNT] = {
    {"LDTILECFG", AMX_EMU_TILE},       {"STTILECFG", AMX_EMU_TILE},      {"TILERELEASE", AMX_EMU_TILE},
    {"TILEZERO", AMX_EMU_TILE},        {"TILELOADD", AMX_EMU_TILE},      {"TILELOADDT1", AMX_EMU_TILE},
    {"TILESTORED", AMX_EMU_TILE},      {"TDPBSSD", AMX_EMU_INT8},        {"TDPBSUD", AMX_EMU_INT8},
    {"TDPBUSD", AMX_EMU_INT8},         {"TDPBUUD", AMX_EMU_INT8},        {"TDPBF16PS", AMX_EMU_BF16},
    {"TDPFP16PS", AMX_EMU_FP16},       {"TCMMIMFP16PS", AMX_EMU_COMPLEX}, {"TCMMRLFP16PS", AMX_EMU_COMPLEX},
};

void print_fault(const amx_emu_fault& f) {
  const auto* rip = reinterpret_cast<const uint8_t*>(f.rip);
  Dl_info where;
  memset(&where, 0, sizeof where);
  dladdr(rip, &where);
  const auto* symbol = static_cast<const uint8_t*>(where.dli_sname ? where.dli_saddr : where.dli_fbase);
  dprintf(2, "amx_emulator: %s on %s at %p (%s!%s+0x%lx): %s\n", f.vector, f.instruction, static_cast<const void*>(rip),
          where.dli_fname ? where.dli_fname : "?", where.dli_sname ? where.dli_sname : "",
          static_cast<unsigned long>(rip - symbol), f.reason);
  const TileState& s = thread_state();
  dprintf(2, "amx_emulator: palette %d start_row %d, rows x colsb:", s.palette, s.start_row);
  for (int t = 0; t < kTiles; ++t) dprintf(2, " tmm%d %dx%d", t, s.rows[t], s.colsb[t]);
  dprintf(2, "\n");
}

[[noreturn]] __attribute__((format(printf, 3, 4)))  //
void fault(const char* vector, const Instruction& in, const char* format, ...) {
  char reason[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  const amx_emu_fault f = {vector, kOps[in.op].name, reason, reinterpret_cast<uint64_t>(in.rip)};
  if (amx_emu_fault_hook hook = fault_hook.load()) hook(&f);
  print_fault(f);
  abort();
}

void zero_rows_from(TileState& s, int t, int row) {
  memset(s.data[t][row], 0, static_cast<size_t>(kMaxRows - row) * kRowBytes);
}

bool is_reserved(int byte) { return (byte >= 2 && byte < 16) || (byte >= 32 && byte < 48) || byte >= 56; }

void check_tile(const TileState& s, const Instruction& in, int t) {
  if (s.colsb[t] > kRowBytes) fault("#GP", in, "tmm%d: colsb %d > 64", t, s.colsb[t]);
  if (s.rows[t] > kMaxRows) fault("#GP", in, "tmm%d: rows %d > 16", t, s.rows[t]);
  if (s.rows[t] && !s.colsb[t]) fault("#GP", in, "tmm%d: %d rows, but colsb 0", t, s.rows[t]);
  if (!s.rows[t] && s.colsb[t]) fault("#GP", in, "tmm%d: rows 0, but colsb %d", t, s.colsb[t]);
}

void load_configuration(TileState& s, const Instruction& in) {
  uint8_t b[64];
  memcpy(b, reinterpret_cast<const void*>(in.address), sizeof b);
  if (b[0] > kMaxPalette) fault("#GP", in, "no such palette: %d", b[0]);
  TileState fresh;
  memset(&fresh, 0, sizeof fresh);
  if (b[0] != 0) {
    fresh.palette = b[0];
    fresh.start_row = b[1];
    for (int i = 0; i < 64; ++i)
      if (is_reserved(i) && b[i]) fault("#GP", in, "reserved byte %d is %d, not zero", i, b[i]);
    memcpy(fresh.colsb, b + 16, sizeof fresh.colsb);
    memcpy(fresh.rows, b + 48, sizeof fresh.rows);
    for (int t = 0; t < kTiles; ++t) check_tile(fresh, in, t);
  }
  memcpy(&s, &fresh, sizeof s);
}

void store_configuration(const TileState& s, const Instruction& in) {
  uint8_t b[64] = {s.palette, s.start_row};
  memcpy(b + 16, s.colsb, sizeof s.colsb);
  memcpy(b + 48, s.rows, sizeof s.rows);
  memcpy(reinterpret_cast<void*>(in.address), b, sizeof b);
}

void require_tile(const TileState& s, const Instruction& in, int t) {
  if (!s.palette) fault("#UD", in, "tiles are not configured (no LDTILECFG on this thread)");
  if (!s.rows[t]) fault("#UD", in, "tmm%d is not configured", t);
}

void require_dwords(const TileState& s, const Instruction& in, int t) {
  if (s.colsb[t] % 4) fault("#UD", in, "tmm%d: colsb %d is no multiple of 4", t, s.colsb[t]);
}

void move_tile(TileState& s, const Instruction& in) {
  const int t = in.reg, rows = s.rows[t];
  const size_t bytes = s.colsb[t];
  require_tile(s, in, t);
  require_dwords(s, in, t);
  if (s.start_row >= rows) fault("#UD", in, "start_row %d >= rows %d of tmm%d", s.start_row, rows, t);
  const bool store = in.op == AMX_EMU_TILESTORED;
  if (!store) zero_rows_from(s, t, s.start_row);
  // start_row is kept current, so that a page fault in the middle leaves what the hardware leaves.
  for (; s.start_row < rows; ++s.start_row) {
    auto* memory = reinterpret_cast<uint8_t*>(in.address + s.start_row * in.stride);
    uint8_t* row = s.data[t][s.start_row];
    store ? memcpy(memory, row, bytes) : memcpy(row, memory, bytes);
  }
  s.start_row = 0;
}

void require_product_shape(const TileState& s, const Instruction& in, int c, int a, int b) {
  if (c == a || c == b || a == b) fault("#UD", in, "the three tiles must differ: tmm%d, tmm%d, tmm%d", c, a, b);
  for (const int t : {c, a, b}) {
    require_tile(s, in, t);
    require_dwords(s, in, t);
  }
  if (s.colsb[c] != s.colsb[b])
    fault("#UD", in, "N: colsb %d of tmm%d (dst) != colsb %d of tmm%d (src2)", s.colsb[c], c, s.colsb[b], b);
  if (s.rows[c] != s.rows[a])
    fault("#UD", in, "M: rows %d of tmm%d (dst) != rows %d of tmm%d (src1)", s.rows[c], c, s.rows[a], a);
  if (s.colsb[a] / 4 != s.rows[b])
    fault("#UD", in, "K: colsb/4 %d of tmm%d (src1) != rows %d of tmm%d (src2)", s.colsb[a] / 4, a, s.rows[b], b);
}

// Rows beyond M and bytes beyond N of every tile are zero already: loads and configurations leave them so, and no product
// writes there.
void multiply_tiles(TileState& s, const Instruction& in) {
  require_product_shape(s, in, in.reg, in.rm, in.vvvv);
  const Dims d = {s.rows[in.reg], s.rows[in.vvvv], s.colsb[in.reg] / 4};
  Rows c = s.data[in.reg], a = s.data[in.rm], b = s.data[in.vvvv];
  switch (in.op) {
    case AMX_EMU_TDPBSSD: dot_int8(c, a, b, d, true, true); break;
    case AMX_EMU_TDPBSUD: dot_int8(c, a, b, d, true, false); break;
    case AMX_EMU_TDPBUSD: dot_int8(c, a, b, d, false, true); break;
    case AMX_EMU_TDPBUUD: dot_int8(c, a, b, d, false, false); break;
    case AMX_EMU_TDPBF16PS: dot_bf16(c, a, b, d); break;
    case AMX_EMU_TDPFP16PS: dot_fp16(c, a, b, d); break;
    case AMX_EMU_TCMMIMFP16PS: complex_fp16(c, a, b, d, true); break;
    case AMX_EMU_TCMMRLFP16PS: complex_fp16(c, a, b, d, false); break;
    default: abort();
  }
  s.start_row = 0;
}

void zero_tile(TileState& s, const Instruction& in) {
  require_tile(s, in, in.reg);
  zero_rows_from(s, in.reg, 0);
  s.start_row = 0;
}

}  // namespace

std::atomic<unsigned> features{AMX_EMU_ALL};
std::atomic<amx_emu_fault_hook> fault_hook{nullptr};
std::atomic<uint64_t> counts[AMX_EMU_OP_COUNT];

const char* name_of(amx_emu_op op) { return kOps[op].name; }

void execute(const Instruction& in) {
  if (!(features.load(std::memory_order_relaxed) & kOps[in.op].feature))
    fault("#UD", in, "not a feature of the emulated CPU");
  TileState& s = thread_state();
  switch (in.op) {
    case AMX_EMU_LDTILECFG: load_configuration(s, in); break;
    case AMX_EMU_STTILECFG: store_configuration(s, in); break;
    case AMX_EMU_TILERELEASE: memset(&s, 0, sizeof s); break;
    case AMX_EMU_TILEZERO: zero_tile(s, in); break;
    case AMX_EMU_TILELOADD:
    case AMX_EMU_TILELOADDT1:
    case AMX_EMU_TILESTORED: move_tile(s, in); break;
    default: multiply_tiles(s, in);
  }
  counts[in.op].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ort_hina::amx_emulator
