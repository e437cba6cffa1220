// A random matmul for one kernel of the table: operands in guarded memory, the kernel's result, and what it must be.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "guarded.h"
#include "kernels/kernel.h"
#include "outcome.h"
#include "random.h"

namespace ort_hina::native_tests {

struct MatmulShape {
  size_t m, n, k;
  size_t lda_pad = 0, ldw_pad = 0, ldc_pad = 0;  // elements between rows
  size_t w_shift = 0;                            // bytes before the weights, of any alignment
  size_t float_shift = 0;                        // floats before c, and before a in rows
  Side side = Side::kEnd;
  bool c_lanes = false;
  bool tiny = false;  // products near the smallest normal number

  std::string text() const;
};

// Random padding and alignment; c in lanes half of the time where the kernel can.
MatmulShape random_layout(Random& random, const kernels::MatmulKernel& kernel, size_t m, size_t n, size_t k);

class MatmulCase {
 public:
  MatmulCase(Random& random, const kernels::MatmulKernel& kernel, const MatmulShape& shape);

  const kernels::MatmulKernel& kernel;
  const MatmulShape shape;
  const size_t lda, ldw, ldc;

  // As the kernel sees them: rounded to its types.
  double activation(size_t token, size_t input) const { return a_[token * shape.k + input]; }
  double weight(size_t input, size_t output) const { return w_[input * shape.n + output]; }
  // For the operand in memory only: not for what is expected.
  void poison_activation(size_t token, size_t input, float value);
  void poison_weight(size_t input, size_t output, float value);

  // Everything but c and scratch.
  kernels::MatmulArgs args() const;
  bool in_lanes(size_t block) const;
  // Elements of c, and where in it this output of this token is.
  size_t c_elements() const;
  size_t c_index(size_t token, size_t output) const;
  // Of each element of c: may the kernel write it?
  std::vector<bool> writable() const;

 private:
  size_t a_elements() const;
  size_t a_index(size_t token, size_t input) const;
  size_t w_index(size_t input, size_t output) const;
  uint8_t* a_at(size_t token, size_t input) const;
  uint8_t* w_at(size_t input, size_t output) const;
  void fill_activations(Random& random);
  void fill_blocks_with_zeros();
  void fill_weights(Random& random);

  std::vector<double> a_, w_;
  Guarded a_memory_, w_memory_;
};

struct MatmulResult {
  std::vector<float> c;   // m × n
  std::string violation;  // writes outside of what is described
};

// c before the kernel writes to it; all NaN.
class MatmulOutput {
 public:
  explicit MatmulOutput(const MatmulCase& matmul);
  float* c() const;
  MatmulResult result() const;

 private:
  const MatmulCase& matmul_;
  Guarded memory_;
};

// Runs the kernel on these arguments with scratch of its own; an overrun of scratch is a violation.
std::string run_with_scratch(const kernels::MatmulKernel& kernel, kernels::MatmulArgs args);

MatmulResult run(const MatmulCase& matmul);

// The result against float64, within its bound. Counts one case.
void check(const MatmulCase& matmul, const MatmulResult& result, Outcome& outcome);

}  // namespace ort_hina::native_tests
