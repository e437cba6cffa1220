// Routing: ids exactly, scores within their bounds.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "bounds.h"
#include "elements.h"
#include "guarded.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::GroupScore;
using kernels::Score;

const std::vector<DataType> kTypes = {DataType::kF32, DataType::kF16, DataType::kBF16};

struct RouteCase {
  kernels::RoutingRule rule;
  size_t tokens, experts;
  DataType type;
  std::vector<float> logits, bias;  // bias may be empty

  std::string text() const {
    return std::to_string(rule.k) + " of " + std::to_string(experts) + " experts, " + std::to_string(rule.num_groups) +
           " groups, score " + std::to_string(static_cast<int>(rule.score)) + ", " + name_of(type);
  }
};

// Logits in steps of a quarter, so that two of them are equal or far apart in every type and after every score. What is summed
// (a bias, the two best of a group) goes with scores that are the logits: those sums are exact or rounded once, as here.
RouteCase random_case(Random& random) {
  RouteCase c;
  c.tokens = random.between(0, 4);
  c.type = random.pick(kTypes);
  c.rule.score = random.pick(std::vector<Score>{Score::kSoftmax, Score::kSigmoid, Score::kNone, Score::kNone});
  c.rule.num_groups = random.pick(std::vector<size_t>{1, 1, 2, 8});
  c.rule.top_groups = random.between(1, c.rule.num_groups);
  const size_t size = random.between(2, 70);
  c.experts = c.rule.num_groups * size;
  c.rule.k = random.between(1, random.one_in(3) ? c.experts : std::min<size_t>(c.experts, 10));
  c.rule.masked_score = random.one_in(2) ? 0.0f : -INFINITY;
  const bool exact = c.rule.score == Score::kNone;
  c.rule.group_score = exact && random.one_in(2) ? GroupScore::kTop2Sum : GroupScore::kMax;
  for (size_t i = 0; i < c.tokens * c.experts; ++i)
    c.logits.push_back(0.25f * static_cast<float>(random.between(0, 64)) - 8.0f);
  if (exact && random.one_in(2))
    for (size_t e = 0; e < c.experts; ++e) c.bias.push_back(random.normal());
  return c;
}

std::vector<double> scores_of(const RouteCase& c, size_t token) {
  std::vector<double> s(c.logits.begin() + static_cast<ptrdiff_t>(token * c.experts),
                        c.logits.begin() + static_cast<ptrdiff_t>((token + 1) * c.experts));
  if (c.rule.score == Score::kSigmoid)
    for (double& x : s) x = 1 / (1 + std::exp(-x));
  if (c.rule.score == Score::kSoftmax) {
    double sum = 0;
    for (double& x : s) sum += x = std::exp(x);
    for (double& x : s) x /= sum;
  }
  return s;
}

// Indices from the largest value down, the lower index first where they are equal.
std::vector<size_t> descending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

void mask_groups(const RouteCase& c, std::vector<double>& values) {
  const size_t size = c.experts / c.rule.num_groups;
  std::vector<double> worth;
  for (size_t g = 0; g < c.rule.num_groups; ++g) {
    std::vector<double> group(values.begin() + static_cast<ptrdiff_t>(g * size),
                              values.begin() + static_cast<ptrdiff_t>((g + 1) * size));
    std::sort(group.rbegin(), group.rend());
    const bool two = c.rule.group_score == GroupScore::kTop2Sum;
    worth.push_back(two ? static_cast<float>(group[0]) + static_cast<float>(group[1]) : group[0]);
  }
  const std::vector<size_t> order = descending(worth);
  for (size_t r = c.rule.top_groups; r < order.size(); ++r)
    std::fill_n(values.begin() + static_cast<ptrdiff_t>(order[r] * size), size, double{c.rule.masked_score});
}

std::vector<size_t> chosen(const RouteCase& c, std::vector<double> values) {
  for (size_t e = 0; e < c.bias.size(); ++e) values[e] = static_cast<float>(values[e]) + c.bias[e];
  if (c.rule.num_groups > 1) mask_groups(c, values);
  std::vector<size_t> order = descending(values);
  order.resize(c.rule.k);
  return order;
}

// The kernel's answers, between forbidden pages.
struct Answers {
  Answers(const kernels::VectorOps& ops, const RouteCase& c, Side side)
      : ids(c.tokens * c.rule.k * 8, side, 8), weights(c.tokens * c.rule.k * 4, side, 4) {
    const size_t bytes = size_of(c.type);
    const Guarded logits(c.logits.size() * bytes, side), bias(c.bias.size() * 4, side, 4);
    const Guarded scratch(kernels::route_scratch(c.experts) * 4, side, 4);
    for (size_t i = 0; i < c.logits.size(); ++i) store(logits.data() + i * bytes, c.type, c.logits[i]);
    for (size_t e = 0; e < c.bias.size(); ++e) store(bias.data() + e * 4, DataType::kF32, c.bias[e]);
    ops.route({logits.data(), c.type, c.bias.empty() ? nullptr : reinterpret_cast<const float*>(bias.data()), c.tokens, c.experts,
               reinterpret_cast<int64_t*>(ids.data()), reinterpret_cast<float*>(weights.data()),
               reinterpret_cast<float*>(scratch.data())},
              c.rule);
    untouched = ids.surroundings_untouched() && weights.surroundings_untouched() && scratch.surroundings_untouched();
  }
  int64_t id(size_t i) const { return reinterpret_cast<const int64_t*>(ids.data())[i]; }
  double weight(size_t i) const { return reinterpret_cast<const float*>(weights.data())[i]; }

  Guarded ids, weights;
  bool untouched;
};

Side random_side(Random& random) { return random.one_in(2) ? Side::kEnd : Side::kStart; }

void check_route(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  const RouteCase c = random_case(random);
  const Answers answers(ops, c, random_side(random));
  ++outcome.cases;
  outcome.require(answers.untouched, "wrote outside: " + c.text());
  // The exponential, its argument (16 units of it at most), a sum of E terms, a division.
  const double relative = c.rule.score == Score::kNone ? 0 : 2 * (gamma(c.experts) + (16 + 4 + 4 + 16 + 2) * kUnit);
  for (size_t t = 0; t < c.tokens; ++t) {
    const std::vector<double> scores = scores_of(c, t);
    const std::vector<size_t> expected = chosen(c, scores);
    for (size_t j = 0; j < c.rule.k; ++j) {
      const size_t i = t * c.rule.k + j;
      outcome.require(answers.id(i) == static_cast<int64_t>(expected[j]),
                      "expert " + std::to_string(answers.id(i)) + ", expected " + std::to_string(expected[j]) + ": " + c.text());
      const double score = scores[expected[j]];
      if (!outcome.within(std::fabs(answers.weight(i) - score), relative * score))
        outcome.fail(std::to_string(answers.weight(i)) + ", expected " + std::to_string(score) + ": " + c.text());
    }
  }
}

// Σ e^(logit - top) over what is near the chosen one and not taken.
double near_sum(const std::vector<float>& logits, size_t chosen_one, size_t taken, float jitter) {
  const float top = logits[chosen_one];
  double sum = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    const bool far = (top - logits[e]) / std::max(std::fabs(logits[e]), top) > 2 * jitter;
    if (!far && e != taken) sum += std::exp(double{logits[e]} - double{top});
  }
  return sum;
}

void check_sparse_mixer(const kernels::VectorOps& ops, Random& random, Outcome& outcome) {
  RouteCase c;
  c.rule.k = 2;
  c.rule.score = Score::kSparseMixer;
  c.rule.jitter = 0.01f;
  c.tokens = 1;
  c.type = DataType::kF32;
  c.experts = random.between(2, 40);
  const float middle = random.pick(std::vector<float>{-5.0f, 0.0f, 5.0f});
  for (size_t e = 0; e < c.experts; ++e) c.logits.push_back(middle + 0.1f * random.normal());
  const Answers answers(ops, c, random_side(random));
  const std::vector<size_t> order = descending({c.logits.begin(), c.logits.end()});
  ++outcome.cases;
  outcome.require(answers.untouched, "wrote outside: " + c.text());
  for (size_t j = 0; j < 2; ++j) {
    outcome.require(answers.id(j) == static_cast<int64_t>(order[j]), "another expert: " + c.text());
    const double expected = 1 / near_sum(c.logits, order[j], j ? order[0] : c.experts, c.rule.jitter);
    if (!outcome.within(std::fabs(answers.weight(j) - expected), 2 * (gamma(c.experts) + 6 * kUnit) * expected))
      outcome.fail(std::to_string(answers.weight(j)) + ", expected " + std::to_string(expected) + ": " + c.text());
  }
}

constexpr int kRounds = 300;

}  // namespace

void add_router_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level) return;
  const auto add = [&](const char* name, auto check) {
    tests.push_back({name_of(level), name, [&ops, check](Random& random, Outcome& outcome) {
                       for (int i = 0; i < kRounds; ++i) check(ops, random, outcome);
                     }});
  };
  add("route", check_route);
  add("sparse_mixer", check_sparse_mixer);
}

}  // namespace ort_hina::native_tests
