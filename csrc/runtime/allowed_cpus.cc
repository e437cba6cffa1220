#include "runtime/allowed_cpus.h"

#include <dirent.h>
#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

namespace ort_hina::runtime {
namespace {

constexpr size_t kFirstMask = 1024, kLargestMask = 1 << 20;  // CPUs; the kernel refuses a mask smaller than its own

struct FreeMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};

void add_cpus(pid_t thread, std::vector<bool>* allowed) {
  for (size_t cpus = kFirstMask; cpus <= kLargestMask; cpus *= 2) {
    const std::unique_ptr<cpu_set_t, FreeMask> mask(CPU_ALLOC(cpus));
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    if (!mask) return;
    CPU_ZERO_S(bytes, mask.get());
    if (sched_getaffinity(thread, bytes, mask.get()) == 0) {
      if (allowed->size() < cpus) allowed->resize(cpus);
      for (size_t cpu = 0; cpu < cpus; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, mask.get())) (*allowed)[cpu] = true;
      return;
    }
    if (errno != EINVAL) return;
  }
}

std::vector<pid_t> threads_of_this_process() {
  std::vector<pid_t> threads = {0};  // the calling thread
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/task"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr)
    if (const int thread = std::atoi(entry->d_name)) threads.push_back(thread);
  return threads;
}

}  // namespace

std::vector<uint32_t> allowed_cpus() {
  std::vector<bool> allowed;
  for (const pid_t thread : threads_of_this_process()) add_cpus(thread, &allowed);
  std::vector<uint32_t> cpus;
  for (size_t cpu = 0; cpu < allowed.size(); ++cpu)
    if (allowed[cpu]) cpus.push_back(static_cast<uint32_t>(cpu));
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace ort_hina::runtime
