// AMX with bf16 (Sapphire Rapids onwards). Tokens are laid out for the tiles, weights stay as they are: [N,K] enters tiles
// straight from its memory, [K,N] is interleaved in pairs on the way. Attention's keys are like [N,K], its values like [K,N].
// Nothing of the C++ library is included: see kernels_avx512.cc.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/isa_tables.h"

namespace ort_hina::kernels::amx {
namespace {

#include "kernels/simd_avx512.h"
#include "kernels/amx_tiles.inl"
#include "kernels/amx_pieces.inl"
#include "kernels/amx_cover.inl"
#include "kernels/amx_blocks.inl"
#include "kernels/amx_weights.inl"
#include "kernels/amx_nk.inl"
#include "kernels/amx_kn.inl"
#include "kernels/amx_kn_stream.inl"
#include "kernels/weight_load.inl"
#include "kernels/vector_basics.inl"
#include "kernels/attention_lanes.inl"
#include "kernels/attention_dots.inl"
#include "kernels/attention_softmax.inl"
#include "kernels/attention_values.inl"
#include "kernels/attention.inl"
#include "kernels/bf16_weights.inl"
#include "kernels/attention_bf16.inl"
#include "kernels/attention_amx_scores.inl"
#include "kernels/attention_amx_values.inl"
#include "kernels/attention_amx.inl"

// Cycles for an element of W, worked out for blocks of 32 × 32 (never measured): a product of tiles takes 16, so a block
// takes 32 for 16 tokens. Read once, a weight tile takes 33 instead of 8: two of them, less what the products hide.
constexpr float kBlock = 1.0f / (32 * 32);
constexpr float kPerMac = 32 * kBlock / kBlockTokens;
constexpr Cost kTilesNKCost = {36 * kBlock, kPerMac, UINT32_MAX, kBlockTokens};
// Interleaving: 32 loads, 32 shuffles, 32 stores, and the tiles that it fills are loaded once more.
constexpr float kInterleave = 64 * kBlock;
constexpr Cost kTilesKNCost = {36 * kBlock + kInterleave, kPerMac, UINT32_MAX, kBlockTokens};
// Sums that wait in scratch; weights arrive in the order in which they lie. With more tokens than 16 it is the other form,
// whose blocks suit a cut along N.
constexpr Cost kStreamKNCost = {24 * kBlock + kInterleave, kPerMac, kBlockTokens, kBlockTokens};
// Inputs of the smallest chunk that is worth an item of its own: two groups of rows.
constexpr uint32_t kStreamChunk = 2 * kGroupInputs;

constexpr uint32_t kNStep = 2 * kTileOutputs;

// Calls are cut for the caches here, so callers may give as many outputs as they like.
constexpr uint32_t kNMost = UINT32_MAX;

#define ORT_HINA_ROWS(TYPE, TYPE_NAME)                                                                                \
  {"matmul_bf16_" TYPE_NAME "_nk_tiles_amx", Isa::kAmx, DataType::kBF16, TYPE, Layout::kNK, Cut::kN, kNStep, kNMost,  \
   0, 1, true, 0, 0, FormNK<TYPE, false>::kScratch, false, kTilesNKCost, matmul_nk<TYPE>},                            \
  {"matmul_bf16_" TYPE_NAME "_kn_tiles_amx", Isa::kAmx, DataType::kBF16, TYPE, Layout::kKN, Cut::kN, kNStep, kNMost,  \
   0, kRowsOnly, false, kBlockTokens, sizeof(float), FormKN<TYPE>::kScratch, false, kTilesKNCost, matmul_kn<TYPE>},   \
  {"matmul_bf16_" TYPE_NAME "_kn_stream_amx", Isa::kAmx, DataType::kBF16, TYPE, Layout::kKN, Cut::kK, 1, kNMost,      \
   kStreamChunk, kRowsOnly, false, kBlockTokens, sizeof(float), FormKN<TYPE>::kScratch + kTileBytes, false,           \
   kStreamKNCost, matmul_kn<TYPE>}

const MatmulKernel kKernels[] = {
    ORT_HINA_ROWS(DataType::kF32, "f32"),
    ORT_HINA_ROWS(DataType::kF16, "f16"),
    ORT_HINA_ROWS(DataType::kBF16, "bf16"),
};

}  // namespace

extern const IsaTable kIsaTable = {Isa::kAmx, kKernels, sizeof kKernels / sizeof kKernels[0], nullptr, attend, &kTileState};

}  // namespace ort_hina::kernels::amx
