// Activations of rows, and of blocks in lanes.
#include <cmath>
#include <string>

#include "bounds.h"
#include "elements.h"
#include "guarded.h"
#include "kernels/table.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using kernels::kBlockTokens;

const std::vector<Activation> kKinds = {Activation::kSilu, Activation::kGelu,     Activation::kGeluTanh,
                                        Activation::kRelu, Activation::kIdentity, Activation::kSwigluOai};
constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh", "relu", "identity", "swiglu_oai"};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double tanh_argument(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); }  // 2·√(2/π)

struct Expected {
  double value, error;
};

// x·sigmoid(y) = x / (1 + e^-y): two roundings and an exponential of 4 units are 6 units of the result. An argument with r
// roundings moves e^-y by r·|y| units, of which a share of 1 - sigmoid(y) reaches the result. The last term is more than is
// lost where e^-y overflows.
Expected times_sigmoid(double x, double y, int roundings) {
  const double value = x * sigmoid(y);
  const double share = roundings * std::fabs(y) * (1 - sigmoid(y));
  return {value, kUnit * (6 + share) * std::fabs(value) + 0x1p-120};
}

// x/2·(1 + erf(z)), z = x/√2 of two roundings (z·erf'(z) <= 0.485), an erf of 2 units, a sum of at most 2: 2.5 units of |x|;
// and two products.
Expected gelu(double x) {
  return {0.5 * x * (1 + std::erf(x / std::sqrt(2.0))), 4.5 * kUnit * std::fabs(x) + 0x1p-120};
}

Expected activated(float x, const ActivationSpec& spec) {
  switch (spec.kind) {
    case Activation::kSilu: return times_sigmoid(x, x, 0);
    case Activation::kGelu: return gelu(x);
    case Activation::kGeluTanh: return times_sigmoid(x, tanh_argument(x), 6);
    case Activation::kRelu: return {std::fmax(x, 0.0), 0};
    case Activation::kIdentity: return {x, 0};
    case Activation::kSwigluOai: {
      const double limited = std::fmin(x, spec.limit);
      return times_sigmoid(limited, static_cast<double>(spec.alpha) * limited, 1);
    }
  }
  return {NAN, 0};
}

// Sums with a bias are the same in any float32 arithmetic, so the reference makes them in float32, too.
struct Unit {
  float gate, up;
  bool gated;
};

Expected expected(const Unit& unit, const ActivationSpec& spec) {
  const Expected act = activated(unit.gate, spec);
  if (!unit.gated) return act;
  double up = unit.up;
  if (spec.kind == Activation::kSwigluOai) up = std::fmax(-spec.limit, std::fmin(spec.limit, unit.up)) + spec.beta;
  const double value = act.value * up;
  return {value, std::fabs(up) * act.error + 2.01 * kUnit * std::fabs(value) + 0x1p-149};
}

// gate, up and biases of `count` (tokens × units), `step` floats apart.
struct Operands {
  Operands(Random& random, size_t rows, size_t n, size_t ld, size_t step, Side side)
      : gate(((rows - 1) * ld + (n - 1) * step + 1) * 4, side), up(gate.size(), side), gate_bias(n * 4, side),
        up_bias(n * 4, side) {
    const float scale = random.pick<float>({0.01f, 1.0f, 6.0f, 40.0f});
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < n; ++i) {
        floats(gate)[r * ld + i * step] = random.normal() * scale;
        floats(up)[r * ld + i * step] = random.normal() * 4;
      }
    for (size_t i = 0; i < n; ++i) floats(gate_bias)[i] = random.normal(), floats(up_bias)[i] = random.normal();
  }
  static float* floats(const Guarded& g) { return reinterpret_cast<float*>(g.data()); }

  Guarded gate, up, gate_bias, up_bias;
};

ActivationSpec random_spec(Random& random, Activation kind) {
  ActivationSpec spec;
  spec.kind = kind;
  spec.alpha = random.pick<float>({1.0f, 1.702f, 0.5f});
  spec.beta = random.pick<float>({0.0f, 1.0f, -0.25f});
  spec.limit = random.pick<float>({1.0f, 7.0f, INFINITY});
  return spec;
}

struct Variant {
  bool gated, biased;
};

Unit unit_at(const Operands& o, size_t at, size_t i, const Variant& v) {
  Unit unit{o.floats(o.gate)[at], o.floats(o.up)[at], v.gated};
  if (v.biased) unit.gate += o.floats(o.gate_bias)[i], unit.up += o.floats(o.up_bias)[i];
  return unit;
}

std::string text(const ActivationSpec& spec, size_t rows, size_t n, size_t step, const Variant& v) {
  return std::string(kNames[static_cast<size_t>(spec.kind)]) + " rows " + std::to_string(rows) + " n " + std::to_string(n) +
         " step " + std::to_string(step) + (v.gated ? " gated" : "") + (v.biased ? " biased" : "");
}

void check_rows(const kernels::VectorOps& ops, Random& random, const ActivationSpec& spec, Outcome& outcome) {
  const Variant v = {!random.one_in(3), random.one_in(2)};
  const size_t rows = random.between(1, 4), n = random.between(1, 70), step = random.between(1, 2);
  const size_t ld = n * step + random.between(0, 3), ldh = n + random.between(0, 3);
  const Side side = random.one_in(2) ? Side::kEnd : Side::kStart;
  const Operands o(random, rows, n, ld, step, side);
  const Guarded h(((rows - 1) * ldh + n) * 4, side);
  ops.activate({o.floats(o.gate), v.gated ? o.floats(o.up) : nullptr, ld, step, v.biased ? o.floats(o.gate_bias) : nullptr,
                v.biased && v.gated ? o.floats(o.up_bias) : nullptr, o.floats(h), ldh, rows, n, spec});
  ++outcome.cases;
  const std::string what = text(spec, rows, n, step, v);
  outcome.require(h.surroundings_untouched(), "wrote outside of h: " + what);
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < ldh && r * ldh + i < h.size() / 4; ++i) {
      const float got = o.floats(h)[r * ldh + i];
      if (i >= n) {
        outcome.require(bits_of(got) == 0xFFFFFFFF, "wrote between rows of h: " + what);
        continue;
      }
      const Expected want = expected(unit_at(o, r * ld + i * step, i, v), spec);
      if (!outcome.within(std::fabs(got - want.value), want.error))
        outcome.fail(std::to_string(got) + ", expected " + std::to_string(want.value) + ": " + what);
    }
}

// A block in lanes: unit i has its 16 tokens at [16·i·step].
struct LaneOperands {
  LaneOperands(Random& random, size_t tokens, size_t n, size_t step, Side side)
      : units(random, n, kBlockTokens, kBlockTokens * step, 1, side), biases(random, 1, n, n, 1, side), step(step) {
    for (const Guarded* g : {&units.gate, &units.up})
      for (size_t i = 0; i < n; ++i)
        for (size_t t = tokens; t < kBlockTokens; ++t) Operands::floats(*g)[kBlockTokens * i * step + t] = NAN;
  }

  Unit at(size_t token, size_t i, const Variant& v) const {
    const size_t place = kBlockTokens * i * step + token;
    Unit unit{Operands::floats(units.gate)[place], Operands::floats(units.up)[place], v.gated};
    if (v.biased) unit.gate += Operands::floats(biases.gate_bias)[i], unit.up += Operands::floats(biases.up_bias)[i];
    return unit;
  }

  const Operands units, biases;
  const size_t step;
};

// What absent tokens have in gate and up is NaN here; in h it must be 0.
void check_lanes(const kernels::VectorOps& ops, Random& random, const ActivationSpec& spec, Outcome& outcome) {
  const Variant v = {!random.one_in(3), random.one_in(2)};
  const size_t tokens = random.between(1, kBlockTokens), n = random.between(1, 70), step = random.between(1, 2);
  const size_t padded = (n + 1) / 2 * 2 + random.pick<size_t>({0, 2, 30});
  const Side side = random.one_in(2) ? Side::kEnd : Side::kStart;
  const LaneOperands o(random, tokens, n, step, side);
  const Guarded h(padded * kBlockTokens * 2, side, 64);
  const auto floats = [](const Guarded& g, bool there) { return there ? Operands::floats(g) : nullptr; };
  ops.activate_lanes({floats(o.units.gate, true), floats(o.units.up, v.gated), step, floats(o.biases.gate_bias, v.biased),
                      floats(o.biases.up_bias, v.biased && v.gated), reinterpret_cast<uint16_t*>(h.data()), tokens, n,
                      padded, spec});
  ++outcome.cases;
  const std::string what = "lanes of " + text(spec, tokens, n, step, v);
  outcome.require(h.surroundings_untouched(), "wrote outside of h: " + what);
  for (size_t i = 0; i < padded; ++i)
    for (size_t t = 0; t < kBlockTokens; ++t) {
      const float got = load(h.data() + 2 * (i / 2 * 2 * kBlockTokens + 2 * t + i % 2), DataType::kBF16);
      if (i >= n || t >= tokens) {
        outcome.require(got == 0, "absent unit or token is " + std::to_string(got) + ": " + what);
        continue;
      }
      const Expected want = expected(o.at(t, i, v), spec);
      const double bound = want.error + rounding(std::fabs(want.value) + want.error, DataType::kBF16);
      if (!outcome.within(std::fabs(got - want.value), bound))
        outcome.fail(std::to_string(got) + ", expected " + std::to_string(want.value) + ": " + what);
    }
}

constexpr int kRounds = 60;

}  // namespace

void add_activation_tests(Isa level, Tests& tests) {
  const kernels::VectorOps& ops = kernels::vector_ops(level);
  if (ops.isa != level) return;
  const auto add = [&](const char* name, auto check) {
    tests.push_back({name_of(level), name, [&ops, check](Random& random, Outcome& outcome) {
                       for (const Activation kind : kKinds)
                         for (int i = 0; i < kRounds; ++i) check(ops, random, random_spec(random, kind), outcome);
                     }});
  };
  add("activate", check_rows);
  if (ops.activate_lanes) add("activate_lanes", check_lanes);
}

}  // namespace ort_hina::native_tests
