// Are the checks able to fail? Each is given what it is there to find.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <csignal>

#include "kernels/table.h"
#include "matmul_case.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

const kernels::MatmulKernel& any_kernel() { return *kernels::table().front(); }

MatmulCase any_case(Random& random) { return MatmulCase(random, any_kernel(), {5, 9, 33, 1, 1, 1, 1, 1}); }

bool finds(const MatmulCase& matmul, const MatmulResult& result) {
  Outcome outcome;
  check(matmul, result, outcome);
  return outcome.failed();
}

// A float's neighbours are within the bound; what is a thousand of them away is not.
void finds_a_wrong_number(Random& random, Outcome& outcome) {
  const MatmulCase matmul = any_case(random);
  const MatmulResult right = run(matmul);
  outcome.require(!finds(matmul, right), "the right result fails");
  for (size_t i = 0; i < right.c.size(); ++i) {
    double magnitude = 0;
    for (size_t input = 0; input < matmul.shape.k; ++input)
      magnitude += std::fabs(matmul.activation(i / matmul.shape.n, input) * matmul.weight(input, i % matmul.shape.n));
    for (const float wrong : {right.c[i] + static_cast<float>(magnitude) * 0x1p-17f, NAN, INFINITY}) {
      MatmulResult corrupted = right;
      corrupted.c[i] = wrong;
      ++outcome.cases;
      outcome.require(finds(matmul, corrupted), "a wrong number is not found");
    }
  }
}

void finds_a_stray_write(Random& random, Outcome& outcome) {
  const MatmulCase matmul = any_case(random);
  const auto stray = [&](ptrdiff_t element) {
    const MatmulOutput output(matmul);
    output.c()[element] = 1;
    ++outcome.cases;
    outcome.require(!output.result().violation.empty(), "a write to c[" + std::to_string(element) + "] is not found");
  };
  stray(static_cast<ptrdiff_t>(matmul.shape.n));  // between two rows
  stray(-1);
  const Guarded gap(65, Side::kEnd, 64);
  gap.data()[65] = 0;
  outcome.require(!gap.surroundings_untouched(), "a write into the gap is not found");
}

sigjmp_buf after_fault;
void on_fault(int) { siglongjmp(after_fault, 1); }

bool faults(const volatile uint8_t* address) {
  struct sigaction ours = {}, segv, bus;
  ours.sa_handler = on_fault;
  sigaction(SIGSEGV, &ours, &segv);
  sigaction(SIGBUS, &ours, &bus);
  volatile bool faulted = true;
  if (!sigsetjmp(after_fault, 1)) {
    (void)*address;
    faulted = false;
  }
  sigaction(SIGSEGV, &segv, nullptr);
  sigaction(SIGBUS, &bus, nullptr);
  return faulted;
}

void pages_are_forbidden(Random&, Outcome& outcome) {
  for (const size_t bytes : {1, 100, 4095, 4096, 4097}) {
    const Guarded at_end(bytes, Side::kEnd), at_start(bytes, Side::kStart);
    ++outcome.cases;
    outcome.require(faults(at_end.data() + bytes), "the byte behind may be read");
    outcome.require(faults(at_start.data() - 1), "the byte before may be read");
    outcome.require(!faults(at_end.data()) && !faults(at_end.data() + bytes - 1), "the bytes themselves may not");
  }
}

// Inputs beyond k and what lies between rows are NaN, so a kernel that reads them cannot answer right.
void everything_else_is_nan(Random& random, Outcome& outcome) {
  const MatmulCase matmul = any_case(random);
  const kernels::MatmulArgs args = matmul.args();
  ++outcome.cases;
  outcome.require(std::isnan(static_cast<const float*>(args.a)[matmul.shape.k]), "padding of a is a number");
}

// Kernels with one flaw each, which run_right() has not.

void run_right(const kernels::MatmulArgs& args) { any_kernel().run(args); }

void forget_an_output(const kernels::MatmulArgs& args) {
  kernels::MatmulArgs fewer = args;
  fewer.n = args.n > 1 ? args.n - 1 : 1;
  run_right(fewer);
}

// Far from what the sum of so many products may be off.
void change_a_bit(float& x, size_t k) {
  if (k > 30 && std::isfinite(x)) x = std::nextafter(x, 0.0f);
}

void answer_otherwise_each_time(const kernels::MatmulArgs& args) {
  static int calls = 0;
  run_right(args);
  if (++calls % 2) change_a_bit(args.c[0], args.k);
}

void let_tokens_meet(const kernels::MatmulArgs& args) {
  run_right(args);
  const float* last = static_cast<const float*>(args.a) + (args.m - 1) * args.lda;
  for (size_t i = 0; i < args.k && args.m > 1; ++i) args.c[0] += 0 * last[i];
}

void let_outputs_meet(const kernels::MatmulArgs& args) {
  run_right(args);
  float* end = args.c + args.n;
  if (std::any_of(args.c, end, [](float x) { return std::isnan(x); })) std::fill(args.c, end, NAN);
}

void depend_on_where_it_ends(const kernels::MatmulArgs& args) {
  run_right(args);
  change_a_bit(args.c[args.n - 1], args.k);
}

struct Flaw {
  void (*run)(const kernels::MatmulArgs&);
  const char* words;  // of the failure
};

const std::vector<Flaw> kFlaws = {
    {run_right, ""},
    {forget_an_output, "nan, expected"},
    {answer_otherwise_each_time, "other bits the second time"},
    {let_tokens_meet, " in token "},
    {let_outputs_meet, "NaN in a weight"},
    {depend_on_where_it_ends, "other bits when cut"},
};

void finds_flaws(Random& random, Outcome& outcome) {
  for (const Flaw& flaw : kFlaws) {
    kernels::MatmulKernel kernel = any_kernel();
    kernel.run = flaw.run;
    Outcome found;
    test_matmul(kernel, random, found);
    ++outcome.cases;
    const bool named = found.failure.find(flaw.words) != std::string::npos;
    outcome.require(found.failed() == (flaw.run != run_right) && named,
                    std::string("a flaw is not found: ") + flaw.words + ", instead: " + found.failure);
  }
}

}  // namespace

void add_self_checks(Tests& tests) {
  tests.push_back({"-", "self-check: wrong numbers", finds_a_wrong_number});
  tests.push_back({"-", "self-check: stray writes", finds_a_stray_write});
  tests.push_back({"-", "self-check: forbidden pages", pages_are_forbidden});
  tests.push_back({"-", "self-check: padding", everything_else_is_nan});
  tests.push_back({"-", "self-check: flawed kernels", finds_flaws});
}

}  // namespace ort_hina::native_tests
