// What is particular to AMX: how many instructions a matmul or attention takes, and the configuration that others left on
// the thread.
#if defined(__x86_64__)
#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "amx_emulator/amx_emulator.h"
#include "attention_case.h"
#include "kernels/table.h"
#include "levels.h"
#include "matmul_case.h"
#include "tests.h"
#include "tile_instructions.h"

namespace ort_hina::native_tests {
namespace {

using kernels::MatmulKernel;

size_t tiles_of(size_t elements, size_t tile) { return (elements + tile - 1) / tile; }

struct Counts {
  size_t products, loads;
};

Counts counted() {
  return {amx_emu_count(AMX_EMU_TDPBF16PS), amx_emu_count(AMX_EMU_TILELOADD) + amx_emu_count(AMX_EMU_TILELOADDT1)};
}

Counts counts_of(Random& random, const MatmulKernel& kernel, size_t m, size_t n, size_t k) {
  const MatmulCase matmul(random, kernel, random_layout(random, kernel, m, n, k));
  amx_emu_reset_counts();
  run(matmul);
  return counted();
}

// The fewest loads for a grid of token and output tiles at each step of k. Of eight tiles, 2 × 2 sums and their operands
// take one load a product; what is left over when a side is odd shares one operand among up to six sums.
double fewest_loads(size_t token_tiles, size_t output_tiles) {
  const auto strip = [](size_t tiles) { return static_cast<double>(tiles) + static_cast<double>((tiles + 5) / 6); };
  const size_t even_tokens = token_tiles / 2 * 2, even_outputs = output_tiles / 2 * 2;
  double loads = static_cast<double>(even_tokens * even_outputs);
  if (even_tokens < token_tiles) loads += strip(output_tiles);
  if (even_outputs < output_tiles) loads += strip(even_tokens);
  return loads;
}

// Each product costs 16 cycles, each load 8: as long as there is no more than one load a product, loads hide.
void check_counts(Random& random, const MatmulKernel& kernel, Outcome& outcome) {
  for (const size_t m : {32, 33, 40, 48, 64, 70, 100})
    for (const size_t n : {64, 96, 100, 176})
      for (const size_t k : {32, 65, 176, 512}) {
        const size_t token_tiles = tiles_of(m, 16), output_tiles = tiles_of(n, 16), steps = tiles_of(k, 32);
        const Counts counts = counts_of(random, kernel, m, n, k);
        const std::string what = "m " + std::to_string(m) + " n " + std::to_string(n) + " k " + std::to_string(k) + ": " +
                                 std::to_string(counts.products) + " products, " + std::to_string(counts.loads) + " loads";
        ++outcome.cases;
        outcome.require(counts.products == token_tiles * output_tiles * steps, what);
        const double allowed = fewest_loads(token_tiles, output_tiles) * static_cast<double>(steps);
        // What is cut along K keeps its sums in memory, and is for few tokens.
        if (kernel.cut == kernels::Cut::kK) continue;
        outcome.require(outcome.within(static_cast<double>(counts.loads), allowed), what);
      }
  outcome.note = "worst is loads / fewest loads";
}

// Scores of each block of keys, then values, 128 columns at a time. Where there is one tile of rows, lines of four, which hide
// the time that a product takes.
struct AttentionCounts {
  size_t products = 0, stores = 0;
  double loads = 0;

  void add(size_t row_tiles, size_t other_tiles, size_t steps) {
    products += row_tiles * other_tiles * steps;
    stores += row_tiles * other_tiles;
    const double line = static_cast<double>(other_tiles + tiles_of(other_tiles, 4));
    loads += (row_tiles == 1 ? line : fewest_loads(row_tiles, other_tiles)) * static_cast<double>(steps);
  }
  void add_block(const AttentionCase& c, size_t keys) {
    const size_t rows = tiles_of(c.rows, 16);
    add(rows, tiles_of(keys, 16), tiles_of(c.key_size, 32));
    // Interleaving gives pairs of 16 columns.
    for (size_t first = 0; first < c.value_size; first += 128)
      add(rows, 2 * tiles_of(std::min<size_t>(128, c.value_size - first), 32), tiles_of(keys, 32));
  }
};

AttentionCounts expected_counts(const AttentionCase& c) {
  AttentionCounts counts;
  for (size_t first = 0; first < c.keys; first += kernels::kAttentionKeys)
    counts.add_block(c, std::min(kernels::kAttentionKeys, c.keys - first));
  return counts;
}

// Rows that do not see all keys take no more than others.
void check_attention_counts(Random& random, Outcome& outcome) {
  const kernels::VectorOps& ops = kernels::vector_ops(Isa::kAmx);
  for (const size_t rows : {8, 16, 31, 40, 48, 64, 70})
    for (const size_t keys : {16, 40, 128, 203})
      for (const auto& [key_size, value_size] : {std::pair<size_t, size_t>{64, 64}, {128, 128}, {192, 128}, {80, 336}}) {
        const AttentionCase c = bf16_attention(rows, keys, key_size, value_size, random.one_in(2));
        const AttentionOperands operands(c, Side::kEnd, random);
        amx_emu_reset_counts();
        attend(ops, c, operands, 0);
        const Counts found = counted();
        const AttentionCounts expected = expected_counts(c);
        const std::string what = c.text() + ": " + std::to_string(found.products) + " products, " +
                                 std::to_string(found.loads) + " loads";
        ++outcome.cases;
        outcome.require(found.products == expected.products, what);
        outcome.require(outcome.within(static_cast<double>(found.loads), expected.loads), what);
        outcome.require(amx_emu_count(AMX_EMU_TILESTORED) == expected.stores, what + ", stores");
        outcome.require(amx_emu_count(AMX_EMU_LDTILECFG) == 1, what + ", configurations");
      }
  outcome.note = "worst is loads / fewest loads";
}

// Where tiles would be mostly empty, or do not pay, and of other types.
void check_attention_without_tiles(Random& random, Outcome& outcome) {
  AttentionCase odd = bf16_attention(16, 40, 63, 64, false), wide = bf16_attention(16, 40, 64, 64, false);
  wide.type = DataType::kF16;
  const AttentionCase few_rows = bf16_attention(7, 40, 64, 64, false), few_keys = bf16_attention(16, 15, 64, 64, false);
  for (const AttentionCase& c : {few_rows, few_keys, odd, wide}) {
    const AttentionOperands operands(c, Side::kEnd, random);
    amx_emu_reset_counts();
    attend(kernels::vector_ops(Isa::kAmx), c, operands, 0);
    ++outcome.cases;
    outcome.require(counted().products == 0, "tiles are used: " + c.text());
  }
}

TileConfiguration odd_configuration() {
  TileConfiguration c;
  c.tile(0, 3, 12), c.tile(5, 7, 20), c.tile(7, 16, 64);
  return c;
}

void run_kernel(Random& random, const MatmulKernel& kernel, Outcome& outcome) {
  const MatmulCase matmul(random, kernel, random_layout(random, kernel, random.between(1, 40), 40, 70));
  check(matmul, run(matmul), outcome);
}

void run_attention(Random& random) {
  const AttentionCase c = bf16_attention(20, 70, 64, 64, true);
  attend(kernels::vector_ops(Isa::kAmx), c, AttentionOperands(c, Side::kEnd, random), 30);
}

void check_restored(const std::function<void()>& use_tiles, const TileConfiguration& before, Outcome& outcome) {
  const kernels::TileState& tiles = *kernels::tile_state(Isa::kAmx);
  load_configuration(before);
  TileConfiguration saved, after;
  std::memset(static_cast<void*>(&saved), 0xAA, sizeof saved);
  tiles.save(&saved);
  use_tiles();
  tiles.restore(&saved);
  store_configuration(&after);
  release_tiles();
  outcome.require(saved == before, "the configuration is not saved as it was");
  outcome.require(after == before, "the configuration is not as it was before the kernel");
}

void check_tile_state(Random& random, Outcome& outcome) {
  outcome.require(kernels::tile_state(Isa::kAmx), "the level has no TileState");
  if (outcome.failed()) return;
  TileConfiguration none;
  none.palette = 0;
  for (const TileConfiguration& before : {odd_configuration(), none}) {
    for (const MatmulKernel* kernel : rows_of(Isa::kAmx))
      check_restored([&] { run_kernel(random, *kernel, outcome); }, before, outcome);
    check_restored([&] { run_attention(random); }, before, outcome);
  }
}

void check_new_thread(Random& random, Outcome& outcome) {
  for (const MatmulKernel* kernel : rows_of(Isa::kAmx)) {
    std::thread thread([&] { run_kernel(random, *kernel, outcome); });
    thread.join();
  }
}

}  // namespace

void add_amx_tests(Tests& tests) {
  tests.push_back({"amx", "tile configuration", check_tile_state});
  tests.push_back({"amx", "kernels on a new thread", check_new_thread});
  if (!amx_is_emulated()) return;
  for (const MatmulKernel* kernel : rows_of(Isa::kAmx))
    tests.push_back({"amx", std::string("counts: ") + kernel->name, [kernel](Random& random, Outcome& outcome) {
                       check_counts(random, *kernel, outcome);
                     }});
  tests.push_back({"amx", "counts: attend", check_attention_counts});
  tests.push_back({"amx", "attend without tiles", check_attention_without_tiles});
}

}  // namespace ort_hina::native_tests
#else
#include "tests.h"

namespace ort_hina::native_tests {
void add_amx_tests(Tests&) {}
}  // namespace ort_hina::native_tests
#endif
