// Random matmuls on many threads at once. The threads are new each time, so none has used a tile before.
#include <thread>

#include "levels.h"
#include "matmul_case.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

struct Job {
  const kernels::MatmulKernel* kernel;
  size_t m, n, k;
  uint64_t seed;
  Outcome outcome;
};

void run_job(Job& job) {
  Random random(job.seed);
  const MatmulCase matmul(random, *job.kernel, random_layout(random, *job.kernel, job.m, job.n, job.k));
  check(matmul, run(matmul), job.outcome);
  if (job.outcome.failed()) job.outcome.failure += std::string(" in ") + job.kernel->name;
}

void run_at_once(std::vector<Job>& jobs) {
  std::vector<std::thread> threads;
  for (Job& job : jobs) threads.emplace_back([&job] { run_job(job); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Outcome stress(const std::vector<Isa>& levels, size_t shapes, Random& random) {
  std::vector<const kernels::MatmulKernel*> rows;
  for (const Isa level : levels)
    for (const kernels::MatmulKernel* row : rows_of(level)) rows.push_back(row);
  Outcome outcome;
  for (size_t i = 0; i < shapes && !outcome.failed(); ++i) {
    const size_t m = random.between(1, 70), n = random.between(1, 200), k = random.between(1, 200);
    std::vector<Job> jobs(random.between(1, 64));
    for (Job& job : jobs) job = {random.pick(rows), m, n, k, random.bits(), {}};
    run_at_once(jobs);
    for (const Job& job : jobs) outcome.merge(job.outcome);
  }
  return outcome;
}

}  // namespace ort_hina::native_tests
