#include "operators/router.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "kernels/table.h"

namespace ort_hina::operators {
namespace {

using std::to_string;

// Work below which waking another thread costs more than it saves, counted in logits: some 10 µs.
constexpr size_t kItemLogits = 8192;
// What a token costs beside reading its logits, in logits.
constexpr size_t kTokenLogits = 64;
// Scratch up to this many experts lies on the stack, about 16 KB.
constexpr size_t kStackExperts = 1024;

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& got) {
  throw std::invalid_argument("attribute " + name + ": expected " + expected + ", got " + got);
}

size_t positive(const std::string& name, int64_t value) {
  if (value < 1) refuse(name, "at least 1", to_string(value));
  return static_cast<size_t>(value);
}

float not_negative(const std::string& name, float value) {
  if (!(value >= 0.0f) || std::isinf(value)) refuse(name, "a finite number of at least 0", to_string(value));
  return value;
}

kernels::Score score_named(const std::string& text) {
  if (text == "softmax") return kernels::Score::kSoftmax;
  if (text == "sigmoid") return kernels::Score::kSigmoid;
  if (text == "none") return kernels::Score::kNone;
  if (text == "sparse_mixer") return kernels::Score::kSparseMixer;
  refuse("score", "softmax, sigmoid, none or sparse_mixer", "'" + text + "'");
}

kernels::GroupScore group_score_named(const std::string& text) {
  if (text == "max") return kernels::GroupScore::kMax;
  if (text == "top2_sum") return kernels::GroupScore::kTop2Sum;
  refuse("group_score", "max or top2_sum", "'" + text + "'");
}

kernels::WeightFunction weight_function_named(const std::string& text) {
  if (text == "none") return kernels::WeightFunction::kNone;
  if (text == "softmax") return kernels::WeightFunction::kSoftmax;
  if (text == "sigmoid") return kernels::WeightFunction::kSigmoid;
  refuse("weight_function", "none, softmax or sigmoid", "'" + text + "'");
}

kernels::RoutingRule rule_of(const RouterAttributes& a) {
  kernels::RoutingRule rule;
  rule.k = positive("k", a.k);
  rule.score = score_named(a.score);
  rule.num_groups = positive("num_groups", a.num_groups);
  rule.top_groups = positive("top_groups", a.top_groups);
  if (rule.top_groups > rule.num_groups)
    refuse("top_groups", "at most " + to_string(a.num_groups) + " (num_groups)", to_string(a.top_groups));
  rule.group_score = group_score_named(a.group_score);
  if (a.masked_score != 0.0f && a.masked_score != -HUGE_VALF) refuse("masked_score", "0 or -inf", to_string(a.masked_score));
  rule.masked_score = a.masked_score;
  rule.weight_function = weight_function_named(a.weight_function);
  if (a.normalize != 0 && a.normalize != 1) refuse("normalize", "0 or 1", to_string(a.normalize));
  rule.normalize = a.normalize == 1;
  rule.normalize_epsilon = not_negative("normalize_epsilon", a.normalize_epsilon);
  rule.normalize_min = not_negative("normalize_min", a.normalize_min);
  if (!std::isfinite(a.scale)) refuse("scale", "a finite number", to_string(a.scale));
  rule.scale = a.scale;
  rule.jitter = not_negative("jitter", a.jitter);
  if (rule.score == kernels::Score::kSparseMixer) {
    if (rule.k != 2) refuse("k", "2, since score is sparse_mixer", to_string(a.k));
    if (rule.num_groups != 1) refuse("num_groups", "1, since score is sparse_mixer", to_string(a.num_groups));
  }
  return rule;
}

// f32 as it is; other types are widened once for a call.
class Bias {
 public:
  Bias(const RouterInputs& in, const kernels::VectorOps& ops) : data_(static_cast<const float*>(in.bias)) {
    if (!in.bias || in.bias_type == DataType::kF32) return;
    wide_.reset(new float[in.experts]);
    ops.widen(in.bias, in.bias_type, in.experts, 1.0f, wide_.get());
    data_ = wide_.get();
  }
  const float* data() const { return data_; }

 private:
  std::unique_ptr<float[]> wide_;
  const float* data_;
};

// One call's tokens, cut into items of about equal size.
struct Call {
  kernels::RouteArgs args;
  const kernels::RoutingRule* rule;
  const kernels::VectorOps* ops;
  size_t items;
  float* scratch;  // of every item; null: on the stack

  void run_item(size_t item) const {
    const size_t begin = args.tokens * item / items, end = args.tokens * (item + 1) / items;
    kernels::RouteArgs part = args;
    part.logits = static_cast<const uint8_t*>(args.logits) + begin * args.experts * size_of(args.type);
    part.tokens = end - begin;
    part.ids += begin * rule->k;
    part.weights += begin * rule->k;
    float local[kernels::route_scratch(kStackExperts)];
    part.scratch = scratch ? scratch + item * kernels::route_scratch(args.experts) : local;
    ops->route(part, *rule);
  }
};

size_t items_for(const RouterInputs& in, size_t threads) {
  const size_t work = in.tokens * (in.experts + kTokenLogits);
  return std::max<size_t>(1, std::min({threads, in.tokens, work / kItemLogits}));
}

}  // namespace

Router::Router(const RouterAttributes& attributes, Isa level)
    : rule_(rule_of(attributes)), ops_(kernels::vector_ops(level)) {}

void Router::check(const RouterInputs& in) const {
  if (rule_.k > in.experts) refuse("k", "at most " + to_string(in.experts) + ", the number of experts", to_string(rule_.k));
  if (in.experts % rule_.num_groups)
    refuse("num_groups", "a divisor of " + to_string(in.experts) + ", the number of experts", to_string(rule_.num_groups));
  if (rule_.num_groups > 1 && rule_.group_score == kernels::GroupScore::kTop2Sum && in.experts == rule_.num_groups)
    refuse("group_score", "max, since a group has a single expert", "'top2_sum'");
  if (rule_.score == kernels::Score::kSparseMixer && in.bias)
    throw std::invalid_argument("input 1 (selection_bias): expected none, since score is sparse_mixer");
}

void Router::run(const RouterInputs& in, const runtime::Pool& pool) const {
  if (in.tokens == 0) return;
  const Bias bias(in, ops_);
  Call call = {};
  call.args = {in.logits, in.logits_type, bias.data(), in.tokens, in.experts, in.ids, in.weights, nullptr};
  call.rule = &rule_;
  call.ops = &ops_;
  call.items = items_for(in, pool.threads);
  std::unique_ptr<float[]> heap;
  if (in.experts > kStackExperts) heap.reset(new float[call.items * kernels::route_scratch(in.experts)]);
  call.scratch = heap.get();
  if (call.items == 1) return call.run_item(0);
  pool.parallel_for(
      pool.context, call.items, [](void* data, size_t item) { static_cast<const Call*>(data)->run_item(item); }, &call);
}

}  // namespace ort_hina::operators
