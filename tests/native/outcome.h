// What a test found.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "random.h"

namespace ort_hina::native_tests {

struct Outcome {
  size_t cases = 0;
  double worst = 0;     // error / bound
  std::string failure;  // the first one's words; empty: none
  std::string note;

  bool failed() const { return !failure.empty(); }
  void fail(const std::string& what) {
    if (failure.empty()) failure = what;
  }
  void require(bool condition, const std::string& what) {
    if (!condition) fail(what);
  }
  // False where `error` is beyond `bound`. A NaN is.
  bool within(double error, double bound) {
    worst = std::max(worst, bound > 0 ? error / bound : 0.0);
    return error <= bound;
  }
  void merge(const Outcome& other) {
    cases += other.cases;
    worst = std::max(worst, other.worst);
    if (other.failed()) fail(other.failure);
  }
};

struct Test {
  std::string isa;  // the instruction level that runs, or "-"
  std::string name;
  std::function<void(Random&, Outcome&)> run;
};

using Tests = std::vector<Test>;

}  // namespace ort_hina::native_tests
