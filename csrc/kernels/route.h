// What routing computes, and the contract of its kernel.
#pragma once
#include "kernels/types.h"

namespace ort_hina::kernels {

enum class Score : uint8_t { kSoftmax, kSigmoid, kNone, kSparseMixer };
enum class GroupScore : uint8_t { kMax, kTop2Sum };
enum class WeightFunction : uint8_t { kNone, kSoftmax, kSigmoid };

// A node's attributes (docs/operators.md), checked.
struct RoutingRule {
  size_t k = 0;
  Score score = Score::kSoftmax;
  size_t num_groups = 1;  // divides the number of experts
  size_t top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  float masked_score = 0.0f;
  WeightFunction weight_function = WeightFunction::kNone;
  bool normalize = false;
  float normalize_epsilon = 0.0f;
  float normalize_min = 0.0f;
  float scale = 1.0f;
  float jitter = 0.0f;
};

struct RouteArgs {
  const void* logits;  // [tokens, experts]
  DataType type;
  const float* bias;  // [experts], of the selection; null: none
  size_t tokens, experts;
  int64_t* ids;    // [tokens, k]
  float* weights;  // [tokens, k]
  float* scratch;  // route_scratch(experts) elements
};

// Room for rows to be padded to whole vectors, and for a vector that begins at the last element.
constexpr size_t kRoutePadding = 32;

// Elements: the scores, the values that select, and something for each group or chosen expert.
constexpr size_t route_scratch(size_t experts) { return 3 * (experts + kRoutePadding); }

}  // namespace ort_hina::kernels
