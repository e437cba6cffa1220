// AMX instructions, with what gcc 12's own intrinsics leave out: a tile load is told to read memory, a store to write it,
// and tile numbers may be template arguments. Included inside an ISA namespace.

// Code that is shared by element types and shapes, or that is long and seldom runs, stays out of line.
#define ORT_HINA_NOINLINE __attribute__((noinline))

constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;
constexpr size_t kTileFloats = kTileBytes / sizeof(float);
constexpr size_t kTileOutputs = 16;
constexpr int kTiles = 8;

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "what LDTILECFG reads");

inline void load_config(const void* config) { asm volatile("ldtilecfg (%0)" ::"r"(config) : "memory"); }
inline void store_config(void* config) { asm volatile("sttilecfg (%0)" ::"r"(config) : "memory"); }
inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void tile_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
// For what is read once: does not push anything else out of L1. Four times as slow as tile_load where the data is near.
template <int kTile>
inline void tile_stream_load(const void* from, size_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// C += A·B
template <int kC, int kA, int kB>
inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// LDTILECFG takes about 200 cycles, so a call loads one configuration and copies tails to where whole tiles can be read.
// `whole`: a bit for each tile that has 16 rows; the others have `rows`.
inline void configure_tiles(size_t rows = kTileRows, uint32_t whole = 0) {
  TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < kTiles; ++i) {
    config.row_bytes[i] = kTileRowBytes;
    config.rows[i] = static_cast<uint8_t>(whole >> i & 1 ? kTileRows : rows);
  }
  load_config(&config);
}

void save_tiles(void* configuration) { store_config(configuration); }
void restore_tiles(const void* configuration) {
  const bool released = static_cast<const TileConfig*>(configuration)->palette == 0;
  released ? release_tiles() : load_config(configuration);
}
const TileState kTileState = {save_tiles, restore_tiles};

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};
// f(Index<0>), …, f(Index<kCount - 1>): tile numbers must be constants.
template <int kCount, int kFrom = 0, class F>
inline void for_each_index(const F& f) {
  if constexpr (kFrom < kCount) {
    f(Index<kFrom>{});
    for_each_index<kCount, kFrom + 1>(f);
  }
}

inline __mmask16 head16(size_t n) { return static_cast<__mmask16>(n < 16 ? (1u << n) - 1 : 0xffffu); }
inline __mmask32 head32(size_t n) { return n < 32 ? (uint32_t{1} << n) - 1 : ~uint32_t{0}; }

// Sums of a panel of inputs: the first one's are stored, the others' added.
inline void store_sum(float* c, __mmask16 mask, __m512 x, bool add) {
  _mm512_mask_storeu_ps(c, mask, add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x) : x);
}
