// What the machine can do at most, measured: the denominators of every benchmark.
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/table.h"
#include "python/bindings.h"

namespace ort_hina::python {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One sequential stream through the compiler's vectors, which the optimiser may not drop.
uint64_t read_all(const uint64_t* p, size_t n) {
  uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
  for (size_t i = 0; i + 8 <= n; i += 8) {
    a ^= p[i], b ^= p[i + 1], c ^= p[i + 2], d ^= p[i + 3];
    e ^= p[i + 4], f ^= p[i + 5], g ^= p[i + 6], h ^= p[i + 7];
  }
  return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
}

double read_bandwidth(const Bytes& buffer, size_t threads) {
  const uint64_t* p = reinterpret_cast<const uint64_t*>(buffer.data());
  const size_t words = static_cast<size_t>(buffer.size()) / 8;
  std::vector<uint64_t> sums(threads);
  py::gil_scoped_release release;
  const auto start = Clock::now();
  std::vector<std::thread> workers;
  for (size_t t = 0; t < threads; ++t)
    workers.emplace_back([&, t] { sums[t] = read_all(p + words * t / threads, words * (t + 1) / threads - words * t / threads); });
  for (std::thread& worker : workers) worker.join();
  const double seconds = seconds_since(start);
  volatile uint64_t sink = sums[0];
  (void)sink;
  return static_cast<double>(words) * 8 / seconds;
}

double multiply_add_peak(const std::string& isa, size_t threads, const std::string& type) {
  constexpr size_t kRounds = 4'000'000;
  const kernels::VectorOps& ops = kernels::vector_ops(isa_by_name(isa));
  const bool bf16 = data_type(type) == DataType::kBF16;
  if (bf16 && !ops.bf16_multiply_adds)
    throw std::invalid_argument("level " + std::string(name_of(ops.isa)) + " has no bf16 products");
  const auto multiply_adds = bf16 ? ops.bf16_multiply_adds : ops.multiply_adds;
  std::vector<double> operations(threads);
  py::gil_scoped_release release;
  const auto start = Clock::now();
  std::vector<std::thread> workers;
  for (size_t t = 0; t < threads; ++t) workers.emplace_back([&, t] { operations[t] = multiply_adds(kRounds); });
  for (std::thread& worker : workers) worker.join();
  double total = 0;
  for (double o : operations) total += o;
  return total / seconds_since(start);
}

}  // namespace

void bind_yardsticks(py::module_& m) {
  m.def("read_bandwidth", &read_bandwidth, py::arg("buffer"), py::arg("threads"),
        "Bytes a second at which `threads` threads read `buffer` once, each a contiguous part.");
  m.def("multiply_add_peak", &multiply_add_peak, py::arg("isa"), py::arg("threads"), py::arg("type") = "float",
        "Operations a second (a multiply-add is two) that `threads` threads reach from registers with products of this type.");
}

}  // namespace ort_hina::python
