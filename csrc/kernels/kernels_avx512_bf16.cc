// AVX-512 with bf16 products (AVX512-BF16): Cooper Lake, Zen 4, Sapphire Rapids and later.
// Nothing of the C++ library is included: an inline function that this unit instantiated with its instructions could be
// the copy that the linker keeps for all.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/isa_tables.h"

namespace ort_hina::kernels::avx512_bf16 {
namespace {

constexpr Isa kIsa = Isa::kAvx512Bf16;

#include "kernels/simd_avx512.h"
#include "kernels/weight_load.inl"
#include "kernels/vector_basics.inl"
#include "kernels/vector_ops.inl"
#include "kernels/route.inl"
#include "kernels/fetch_ahead.inl"
#include "kernels/attention_lanes.inl"
#include "kernels/attention_dots.inl"
#include "kernels/attention_softmax.inl"
#include "kernels/attention_values.inl"
#include "kernels/attention.inl"
#include "kernels/bf16_weights.inl"
#include "kernels/bf16_nk.inl"
#include "kernels/bf16_kn.inl"
#include "kernels/bf16_ops.inl"
#include "kernels/attention_bf16.inl"

// Cycles for an element (see Cost), in units of one vector of 32 products.
constexpr float kVector = 1.0f / 32;
constexpr Cost kLanesCost = {2.0f * kVector, 1.1f * kVector, UINT32_MAX};
constexpr Cost kStreamCost = {2.0f * kVector, 1.5f * kVector, kHalfStreamTokens};
constexpr Cost kPanelCost = {6.0f * kVector, 1.1f * kVector, UINT32_MAX};
// Inputs of the smallest chunk that is worth an item of its own.
constexpr uint32_t kStreamChunk = 128;
constexpr uint32_t kRoundedBytes = kRowGroup * kRoundedInputs * 2;

#define ORT_HINA_ROWS(TYPE, TYPE_NAME)                                                                                 \
  {"matmul_bf16_" TYPE_NAME "_nk_lanes_avx512_bf16", kIsa, DataType::kBF16, TYPE, Layout::kNK, Cut::kN, kRowGroup,     \
   UINT32_MAX, 0, kLanesFrom, true, 0, 0, TYPE == DataType::kBF16 ? 0 : kRoundedBytes, true, kLanesCost,               \
   matmul_lanes<TYPE>},                                                                                                \
  {"matmul_bf16_" TYPE_NAME "_kn_stream_avx512_bf16", kIsa, DataType::kBF16, TYPE, Layout::kKN, Cut::kK, 1,            \
   UINT32_MAX, kStreamChunk, kRowsOnly, false, 0, 0, 0, false, kStreamCost, matmul_half_stream<TYPE>},                 \
  {"matmul_bf16_" TYPE_NAME "_kn_panel_avx512_bf16", kIsa, DataType::kBF16, TYPE, Layout::kKN, Cut::kN, kHalfPanelN,   \
   UINT32_MAX, 0, 1, false, 0, 0, kHalfPanelK * kHalfPanelN * 2, false, kPanelCost, matmul_half_panel<TYPE>}

const MatmulKernel kKernels[] = {
    ORT_HINA_ROWS(DataType::kBF16, "bf16"),
    ORT_HINA_ROWS(DataType::kF16, "f16"),
    ORT_HINA_ROWS(DataType::kF32, "f32"),
};

const VectorOps kOps = {kIsa,       activate, activate_lanes, pack,          combine,           widen,
                        sum_chunks, route,    attend_half,    multiply_adds, bf16_multiply_adds};

}  // namespace

extern const IsaTable kIsaTable = {kIsa, kKernels, sizeof kKernels / sizeof kKernels[0], &kOps, nullptr, nullptr};

}  // namespace ort_hina::kernels::avx512_bf16
