// Any CPU, through the compiler's vectors: NEON on aarch64, SSE2 on x86-64.
// Nothing of the C++ library is included: an inline function that this unit instantiated with its instructions could be
// the copy that the linker keeps for all.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/isa_tables.h"

namespace ort_hina::kernels::portable {
namespace {

constexpr Isa kIsa = Isa::kPortable;
#define ORT_HINA_ISA_NAME "portable"

#include "kernels/simd_portable.h"
#include "kernels/weight_load.inl"
#include "kernels/fetch_ahead.inl"
#include "kernels/matmul_dot.inl"
#include "kernels/matmul_panel.inl"
#include "kernels/matmul_stream.inl"
#include "kernels/vector_basics.inl"
#include "kernels/vector_ops.inl"
#include "kernels/route.inl"
#include "kernels/attention_lanes.inl"
#include "kernels/attention_few.inl"
#include "kernels/attention_softmax.inl"
#include "kernels/attention_values.inl"
#include "kernels/attention.inl"

// Cycles for an element (see Cost): {a pass over the weights, a token, tokens of a pass}, in units of one vector multiply-add.
// From runs of each kernel over m = 1…240, and of the whole operator on cold weights where two of them are close.
constexpr float kVector = 1.0f / Simd::kWidth;
#if defined(__aarch64__)
constexpr Cost kDotCost = {0.5f * kVector, 1.3f * kVector, kDotTokens};
constexpr Cost kPanelNKCost = {8.0f * kVector, 1.1f * kVector, UINT32_MAX};
constexpr Cost kPanelKNCost = {8.0f * kVector, 1.1f * kVector, UINT32_MAX};
constexpr Cost kStreamCost = {1.0f * kVector, 1.4f * kVector, kStreamTokens};
#else
constexpr Cost kDotCost = {0.5f * kVector, 1.2f * kVector, kDotTokens};
constexpr Cost kPanelNKCost = {6.0f * kVector, 1.4f * kVector, UINT32_MAX};
constexpr Cost kPanelKNCost = {6.0f * kVector, 1.4f * kVector, UINT32_MAX};
constexpr Cost kStreamCost = {1.0f * kVector, 2.4f * kVector, kStreamTokens};
#endif
// Inputs of the smallest chunk that is worth an item of its own: 8 blocks of rows or more.
constexpr uint32_t kStreamChunk = 128;

#include "kernels/isa_rows.inl"

}  // namespace

extern const IsaTable kIsaTable = {kIsa, kKernels, sizeof kKernels / sizeof kKernels[0], &kOps, nullptr, nullptr};

}  // namespace ort_hina::kernels::portable
