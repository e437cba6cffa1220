// The emulator against plain C++ that was written independently of it: products, movement of tiles, faults, threads.
#if defined(__x86_64__)
#include <cmath>
#include <csetjmp>
#include <ctime>
#include <thread>

#include "amx_emulator/amx_emulator.h"
#include "elements.h"
#include "tests.h"
#include "tile_instructions.h"

namespace ort_hina::native_tests {
namespace {

struct alignas(64) Tile {
  uint8_t b[16][64];

  uint32_t dword(int row, int column) const {
    uint32_t u;
    std::memcpy(&u, &b[row][4 * column], 4);
    return u;
  }
  void set(int row, int column, uint32_t u) { std::memcpy(&b[row][4 * column], &u, 4); }
  bool operator==(const Tile& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

enum class Product { kBf16, kSignedSigned, kSignedUnsigned, kUnsignedSigned, kUnsignedUnsigned, kFp16, kImaginary, kReal };

bool is_integer(Product p) { return p >= Product::kSignedSigned && p <= Product::kUnsignedUnsigned; }

// C tmm0, A tmm1, B tmm2. gcc 12's assembler does not know the FP16 ones.
void multiply(Product p) {
  switch (p) {
    case Product::kBf16: return dot_bf16<0, 1, 2>();
    case Product::kSignedSigned: __asm__ volatile("tdpbssd %%tmm2, %%tmm1, %%tmm0" :::); return;
    case Product::kSignedUnsigned: __asm__ volatile("tdpbsud %%tmm2, %%tmm1, %%tmm0" :::); return;
    case Product::kUnsignedSigned: __asm__ volatile("tdpbusd %%tmm2, %%tmm1, %%tmm0" :::); return;
    case Product::kUnsignedUnsigned: __asm__ volatile("tdpbuud %%tmm2, %%tmm1, %%tmm0" :::); return;
    case Product::kFp16: __asm__ volatile(".byte 0xc4,0xe2,0x6b,0x5c,0xc1" :::); return;
    case Product::kImaginary: __asm__ volatile(".byte 0xc4,0xe2,0x69,0x6c,0xc1" :::); return;
    case Product::kReal: __asm__ volatile(".byte 0xc4,0xe2,0x68,0x6c,0xc1" :::); return;
  }
}

struct Dims {
  int m, k, n;  // in dwords
};

void run_product(Product p, Tile& c, const Tile& a, const Tile& b, const Dims& d) {
  TileConfiguration configuration;
  configuration.tile(0, d.m, 4 * d.n);
  configuration.tile(1, d.m, 4 * d.k);
  configuration.tile(2, d.k, 4 * d.n);
  load_configuration(configuration);
  load_tile<0>(c.b, 64);
  load_tile<1>(a.b, 64);
  load_tile_t1<2>(b.b, 64);
  multiply(p);
  store_tile<0>(c.b, 64);
  release_tiles();
}

float flush(float f) { return std::fabs(f) < 0x1p-126f ? std::copysign(0.0f, f) : f; }
float flushing_fma(float a, float b, float c) { return flush(std::fma(flush(a), flush(b), flush(c))); }
float flushing_add(float a, float b) { return flush(flush(a) + flush(b)); }

uint32_t expected_integer(Product p, uint32_t c, const Tile& a, const Tile& b, int m, int n, int depth) {
  const bool a_signed = p == Product::kSignedSigned || p == Product::kSignedUnsigned;
  const bool b_signed = p == Product::kSignedSigned || p == Product::kUnsignedSigned;
  for (int i = 0; i < 4 * depth; ++i) {
    const uint8_t x = a.b[m][i], y = b.b[i / 4][4 * n + i % 4];
    const int product = (a_signed ? static_cast<int8_t>(x) : x) * (b_signed ? static_cast<int8_t>(y) : y);
    c += static_cast<uint32_t>(product);
  }
  return c;
}

struct Pair {
  float even, odd;
};

Pair pair_of(Product p, uint32_t u) {
  const auto low = static_cast<uint16_t>(u), high = static_cast<uint16_t>(u >> 16);
  if (p == Product::kBf16) return {from_bf16(low), from_bf16(high)};
  return {from_f16(low), from_f16(high)};
}

uint32_t expected_float(Product p, uint32_t c, const Tile& a, const Tile& b, int m, int n, int depth) {
  float even = 0, odd = 0;
  for (int k = 0; k < depth; ++k) {
    const Pair x = pair_of(p, a.dword(m, k)), y = pair_of(p, b.dword(k, n));
    const bool imaginary = p == Product::kImaginary;
    even = flushing_fma(imaginary ? x.odd : x.even, y.even, even);
    odd = flushing_fma(imaginary ? x.even : p == Product::kReal ? -x.odd : x.odd, y.odd, odd);
  }
  return bits_of(flushing_add(float_of(c), flushing_add(even, odd)));
}

enum class Kind { kNormal, kAnyBits, kWide, kTiny, kSpecial };

uint16_t random_bf16(Random& random, Kind kind) {
  const uint64_t r = random.bits();
  const uint64_t sign = (r >> 8 & 1) << 15, fraction = r & 0x7F;
  const auto made = [&](uint64_t exponent) { return static_cast<uint16_t>(sign | exponent << 7 | fraction); };
  switch (kind) {
    case Kind::kNormal: return made(120 + (r >> 16) % 10);
    case Kind::kAnyBits: return static_cast<uint16_t>(r >> 16);
    case Kind::kWide: return made(1 + (r >> 16) % 254);
    case Kind::kTiny: return made(48 + (r >> 16) % 34);  // products around the smallest normal number
    case Kind::kSpecial: break;
  }
  return random.pick<uint16_t>({0, 0x8000, 0x3F80, 0xBF80, 1, 0x8001, 0x7F, 0x80, 0x8080, 0x7F7F, 0xFF7F, 0x4049, 0x7F80,
                                0xFF80, 0x7FC0, 0x7F81, 0xFFC1, 0xFF82});
}

uint16_t random_fp16(Random& random, Kind kind) {
  const uint64_t r = random.bits();
  if (kind == Kind::kNormal) return static_cast<uint16_t>((r & 0x83FF) | (11 + (r >> 16) % 8) << 10);
  if (kind == Kind::kTiny) return static_cast<uint16_t>(r & 0x87FF);  // zero, subnormal, smallest normal
  if (kind != Kind::kSpecial) return static_cast<uint16_t>(r >> 16);
  return random.pick<uint16_t>({0, 0x8000, 0x3C00, 0xBC00, 1, 0x83FF, 0x7C00, 0xFC00, 0x7E00, 0x7D01, 0xFE02, 0x7BFF});
}

uint16_t random_bytes(Random& random, Kind kind) {
  if (kind != Kind::kSpecial) return static_cast<uint16_t>(random.bits());
  const auto byte = [&] { return random.pick<uint16_t>({0, 1, 127, 128, 129, 255}); };
  const uint16_t low = byte();
  return static_cast<uint16_t>(low | byte() << 8);
}

uint16_t random_half(Random& random, Product p, Kind kind) {
  if (is_integer(p)) return random_bytes(random, kind);
  return p == Product::kBf16 ? random_bf16(random, kind) : random_fp16(random, kind);
}

uint32_t random_pair(Random& random, Product p, Kind kind) {
  const uint32_t low = random_half(random, p, kind);
  return low | static_cast<uint32_t>(random_half(random, p, kind)) << 16;
}

uint32_t random_dword(Random& random, Product p, Kind kind) {
  const uint64_t r = random.bits();
  if (is_integer(p) || kind == Kind::kAnyBits) return static_cast<uint32_t>(r);
  if (kind == Kind::kTiny) return static_cast<uint32_t>((r & 0x807FFFFF) | (r >> 40) % 3 << 23);
  const uint32_t low = kind == Kind::kSpecial ? 0 : static_cast<uint32_t>(r & 0xFFFF);
  return static_cast<uint32_t>(random_bf16(random, kind)) << 16 | low;
}

// Below the smallest normal number before rounding, it after rounding: the hardware flushes, the reference does not.
bool at_the_edge_of_flushing(uint32_t got, uint32_t want) {
  return (got & 0x7F800000) == 0 && (want & 0x7FFFFFFF) == 0x00800000;
}

bool equal(Product p, uint32_t got, uint32_t want) {
  if (got == want) return true;
  if (is_integer(p)) return false;
  return (std::isnan(float_of(got)) && std::isnan(float_of(want))) || at_the_edge_of_flushing(got, want);
}

void check_product(Product p, Kind kind, bool whole, Random& random, Outcome& outcome) {
  const auto dimension = [&] { return whole ? 16 : static_cast<int>(random.between(1, 16)); };
  const int m = dimension(), k = dimension(), n = dimension();
  Tile a, b, c;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      a.set(i, j, random_pair(random, p, kind));
      b.set(i, j, random_pair(random, p, kind));
      c.set(i, j, random_dword(random, p, kind));
    }
  Tile got = c;
  run_product(p, got, a, b, {m, k, n});
  ++outcome.cases;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      const bool inside = i < m && j < n;
      const auto expected = is_integer(p) ? expected_integer : expected_float;
      const uint32_t want = inside ? expected(p, c.dword(i, j), a, b, i, j, k) : c.dword(i, j);
      const bool right = inside ? equal(p, got.dword(i, j), want) : got.dword(i, j) == want;
      outcome.require(right, "[" + std::to_string(i) + "][" + std::to_string(j) + "] of " + std::to_string(m) + "×" +
                                 std::to_string(n) + " is " + std::to_string(got.dword(i, j)) + ", expected " +
                                 std::to_string(want));
    }
}

constexpr int kRounds = 600;

void add_product(const char* name, Product p, const std::vector<Kind>& kinds, Tests& tests) {
  tests.push_back({"amx", std::string("emulator: ") + name, [p, kinds](Random& random, Outcome& outcome) {
                     for (const Kind kind : kinds)
                       for (int i = 0; i < kRounds; ++i) check_product(p, kind, i % 4 == 0, random, outcome);
                   }});
}

// Movement of tiles.

Tile stored() {
  Tile tile;
  std::memset(&tile, 0xAA, sizeof tile);
  store_tile<0>(tile.b, 64);
  return tile;
}

Tile rows_at(const uint8_t* p, long stride) {
  Tile tile;
  for (int r = 0; r < 16; ++r) std::memcpy(tile.b[r], p + r * stride, 64);
  return tile;
}

// Addresses that are encoded in all the ways there are.
void check_addressing(const uint8_t* memory, Outcome& outcome) {
  const auto require = [&](const uint8_t* p, long stride, const char* what) {
    ++outcome.cases;
    outcome.require(stored() == rows_at(p, stride), what);
  };
  for (const long stride : {64L, 192L, -192L, 0L, 1L}) {
    load_tile<0>(memory + 8192, stride);
    require(memory + 8192, stride, "load with a stride");
  }
  load_tile<0>(memory + 1, 64);
  require(memory + 1, 64, "load from an odd address");
  const uint8_t* p = memory + 100;
  long stride = 48;
  __asm__ volatile("tileloadd 20(%0,%1,4), %%tmm0" ::"r"(p), "r"(stride) : "memory");
  require(p + 20, 4 * stride, "scale 4, short displacement");
  stride = 16;
  __asm__ volatile("tileloadd 4000(%0,%1,8), %%tmm0" ::"r"(p), "r"(stride) : "memory");
  require(p + 4000, 8 * stride, "scale 8, long displacement");
  register long high_index __asm__("r12") = 80;
  register const uint8_t* high_base __asm__("r13") = memory;
  __asm__ volatile("tileloadd (%0,%1), %%tmm0" ::"r"(high_base), "r"(high_index) : "memory");
  require(memory, 80, "registers of the high half");
}

// Only the tile's rows and bytes are stored, whatever the stride.
void check_small_tiles(const uint8_t* memory, Outcome& outcome) {
  std::vector<uint8_t> got(4096, 0xAA), want(4096, 0xAA);
  load_tile<1>(memory, 64);
  store_tile<1>(got.data(), 33);
  for (int r = 0; r < 5; ++r) std::memcpy(&want[static_cast<size_t>(33 * r)], memory + 64 * r, 12);
  ++outcome.cases;
  outcome.require(got == want, "5 rows of 12 bytes, 33 apart");
  load_tile<7>(memory, 64);
  store_tile<7>(got.data(), 64);
  for (int r = 0; r < 16; ++r) std::memcpy(&want[static_cast<size_t>(64 * r)], memory + 64 * r, 60);
  ++outcome.cases;
  outcome.require(got == want, "16 rows of 60 bytes");
}

// An interrupted load or store goes on at start_row.
void check_start_row(const TileConfiguration& tiles, const uint8_t* memory, Outcome& outcome) {
  TileConfiguration configuration = tiles;
  configuration.start_row = 3;
  load_configuration(configuration);
  load_tile<0>(memory, 64);
  Tile want = rows_at(memory, 64);
  std::memset(want.b, 0, 3 * 64);
  ++outcome.cases;
  outcome.require(stored() == want, "load that goes on at row 3");
  configuration.start_row = 5;
  load_configuration(configuration);
  Tile rest{};
  std::memset(rest.b, 0xAA, 5 * 64);
  ++outcome.cases;
  outcome.require(stored() == rest, "store that goes on at row 5");
}

void check_tiles(Random& random, Outcome& outcome) {
  std::vector<uint8_t> memory(16384);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.bits());
  TileConfiguration configuration, got;
  configuration.tile(0, 16, 64), configuration.tile(1, 5, 12), configuration.tile(3, 1, 4), configuration.tile(7, 16, 60);
  load_configuration(configuration);
  outcome.require(stored() == Tile{}, "tiles are 0 once configured");
  check_addressing(memory.data(), outcome);
  check_small_tiles(memory.data(), outcome);
  store_configuration(&got);
  outcome.require(got == configuration, "the configuration is stored as it was loaded");
  load_tile<0>(memory.data(), 64);
  zero_tile<0>();
  outcome.require(stored() == Tile{}, "tilezero");
  load_tile<0>(memory.data(), 64);
  load_configuration(configuration);
  outcome.require(stored() == Tile{}, "a new configuration zeroes the tiles");
  check_start_row(configuration, memory.data(), outcome);
  release_tiles();
  store_configuration(&got);
  TileConfiguration none;
  none.palette = 0;
  outcome.require(got == none, "no configuration is left after tilerelease");
}

// Faults.

sigjmp_buf after_fault;
const char* fault_seen;

void on_fault(const amx_emu_fault* fault) {
  fault_seen = fault->vector;
  siglongjmp(after_fault, 1);
}

// What the instructions of `body` raise: "#UD", "#GP", or "".
template <class F>
std::string raised(F body) {
  fault_seen = "";
  if (!sigsetjmp(after_fault, 1)) body();
  return fault_seen;
}

template <class F>
void configure(F change) {
  TileConfiguration configuration;
  for (int t = 0; t < 8; ++t) configuration.tile(t, 16, 64);
  change(configuration);
  load_configuration(configuration);
}

using Change = void (*)(TileConfiguration&);

// Which configurations are refused.
const std::vector<std::pair<const char*, Change>> kConfigurations = {
    {"", [](TileConfiguration&) {}},
    {"", [](TileConfiguration& c) { c.palette = 0; }},
    {"", [](TileConfiguration& c) { c.colsb[2] = 62; }},
    {"#GP", [](TileConfiguration& c) { c.palette = 2; }},
    {"#GP", [](TileConfiguration& c) { c.reserved[3] = 1; }},
    {"#GP", [](TileConfiguration& c) { c.rows[8] = 1; }},
    {"#GP", [](TileConfiguration& c) { c.colsb[9] = 64; }},
    {"#GP", [](TileConfiguration& c) { c.rows[2] = 17; }},
    {"#GP", [](TileConfiguration& c) { c.colsb[2] = 68; }},
    {"#GP", [](TileConfiguration& c) { c.colsb[2] = 0; }},
    {"#GP", [](TileConfiguration& c) { c.rows[2] = 0; }},
};

alignas(64) uint8_t fault_memory[4096];

void load_tile_2() { load_tile<2>(fault_memory, 64); }
void zero_tile_2() { zero_tile<2>(); }
void multiply_012() { dot_bf16<0, 1, 2>(); }
void multiply_112() { __asm__ volatile(".byte 0xc4,0xe2,0x72,0x5c,0xc1" :::); }  // the same tile twice

struct RefusedUse {
  const char* vector;
  Change change;
  void (*use)();
};

// Configurations with which an instruction is refused.
const std::vector<RefusedUse> kUses = {
    {"#UD", [](TileConfiguration& c) { c.colsb[2] = 62; }, load_tile_2},
    {"#UD", [](TileConfiguration& c) { c.tile(2, 0, 0); }, load_tile_2},
    {"#UD", [](TileConfiguration& c) { c.tile(2, 0, 0); }, zero_tile_2},
    {"#UD", [](TileConfiguration& c) { c.palette = 0; }, load_tile_2},
    {"#UD", [](TileConfiguration& c) { c.palette = 0; }, multiply_012},
    {"#UD", [](TileConfiguration& c) { c.start_row = 16; }, load_tile_2},
    {"", [](TileConfiguration& c) { c.start_row = 20; }, multiply_012},
    {"#UD", [](TileConfiguration&) {}, multiply_112},
    {"#UD", [](TileConfiguration& c) { c.rows[0] = 8; }, multiply_012},
    {"#UD", [](TileConfiguration& c) { c.colsb[0] = 32; }, multiply_012},
    {"#UD", [](TileConfiguration& c) { c.rows[2] = 8; }, multiply_012},
};

void check_faults(Random&, Outcome& outcome) {
  const amx_emu_fault_hook before = amx_emu_set_fault_hook(on_fault);
  const auto require = [&](const std::string& got, const std::string& want, const char* what, size_t i) {
    ++outcome.cases;
    outcome.require(got == want, what + std::to_string(i) + " raises '" + got + "', expected '" + want + "'");
  };
  for (size_t i = 0; i < kConfigurations.size(); ++i)
    require(raised([&] { configure(kConfigurations[i].second); }), kConfigurations[i].first, "configuration ", i);
  for (size_t i = 0; i < kUses.size(); ++i) {
    configure(kUses[i].change);
    require(raised(kUses[i].use), kUses[i].vector, "use ", i);
  }
  configure([](TileConfiguration&) {});
  amx_emu_set_features(AMX_EMU_TILE | AMX_EMU_INT8);
  require(raised(multiply_012), "#UD", "bf16 on a CPU with INT8 only ", 0);
  amx_emu_set_features(AMX_EMU_ALL);
  release_tiles();
  amx_emu_set_fault_hook(before);
}

// Tiles are the thread's own, and survive that it is switched out.
void keep_a_tile(int number, Outcome& outcome) {
  TileConfiguration configuration;
  configuration.tile(0, 16 - number, 64);
  configuration.tile(6, 16, 64 - 4 * number);
  Tile in;
  std::memset(&in, 17 * (number + 1), sizeof in);
  load_configuration(configuration);
  load_tile<6>(in.b, 64);
  for (int i = 0; i < 200; ++i) {
    const timespec pause = {0, i % 50 == 0 ? 1000000 : 1};
    nanosleep(&pause, nullptr);
    Tile out{};
    store_tile<6>(out.b, 64);
    ++outcome.cases;
    for (const auto& row : out.b)
      outcome.require(std::memcmp(row, in.b, static_cast<size_t>(64 - 4 * number)) == 0, "a tile changed");
  }
  release_tiles();
}

void check_threads(Random&, Outcome& outcome) {
  std::vector<Outcome> outcomes(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&outcomes, t] { keep_a_tile(t, outcomes[static_cast<size_t>(t)]); });
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& o : outcomes) outcome.merge(o);
}

void check_counts(Random&, Outcome& outcome) {
  const uint64_t loads = amx_emu_count(AMX_EMU_TILELOADD), products = amx_emu_count(AMX_EMU_TDPBF16PS);
  const uint64_t all = amx_emu_total();
  Tile a{}, b{}, c{};
  run_product(Product::kBf16, c, a, b, {16, 16, 16});
  ++outcome.cases;
  outcome.require(amx_emu_count(AMX_EMU_TILELOADD) == loads + 2, "two plain loads");
  outcome.require(amx_emu_count(AMX_EMU_TDPBF16PS) == products + 1, "one product");
  outcome.require(amx_emu_total() == all + 7, "seven instructions");
}

}  // namespace

void add_emulator_tests(Tests& tests) {
  const std::vector<Kind> kinds = {Kind::kNormal, Kind::kAnyBits, Kind::kWide, Kind::kTiny, Kind::kSpecial};
  const std::vector<Kind> half_kinds = {Kind::kNormal, Kind::kAnyBits, Kind::kTiny, Kind::kSpecial};
  const std::vector<Kind> byte_kinds = {Kind::kAnyBits, Kind::kSpecial};
  add_product("tdpbf16ps", Product::kBf16, kinds, tests);
  add_product("tdpbssd", Product::kSignedSigned, byte_kinds, tests);
  add_product("tdpbsud", Product::kSignedUnsigned, byte_kinds, tests);
  add_product("tdpbusd", Product::kUnsignedSigned, byte_kinds, tests);
  add_product("tdpbuud", Product::kUnsignedUnsigned, byte_kinds, tests);
  add_product("tdpfp16ps", Product::kFp16, half_kinds, tests);
  add_product("tcmmimfp16ps", Product::kImaginary, half_kinds, tests);
  add_product("tcmmrlfp16ps", Product::kReal, half_kinds, tests);
  tests.push_back({"amx", "emulator: tiles", check_tiles});
  tests.push_back({"amx", "emulator: faults", check_faults});
  tests.push_back({"amx", "emulator: threads", check_threads});
  tests.push_back({"amx", "emulator: counts", check_counts});
}

}  // namespace ort_hina::native_tests
#else
#include "tests.h"

namespace ort_hina::native_tests {
void add_emulator_tests(Tests&) {}
}  // namespace ort_hina::native_tests
#endif
