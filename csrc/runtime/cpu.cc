#include "runtime/cpu.h"

#include <sched.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ort_hina::runtime {
namespace {

#if defined(__x86_64__)

struct Feature {
  const char* name;
  uint32_t leaf;
  char reg;  // of subleaf 0
  int bit;
};

uint32_t cpuid_register(uint32_t leaf, char reg) {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(leaf, 0, &a, &b, &c, &d)) return 0;
  return reg == 'b' ? b : reg == 'c' ? c : d;
}

uint64_t enabled_state() {
  if (!(cpuid_register(1, 'c') >> 27 & 1)) return 0;  // OSXSAVE: the system manages extended state at all
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Both the CPU and the operating system must agree: a hypervisor may advertise what the system has not enabled.
IsaLevel x86_level(Isa isa, const std::vector<Feature>& features, uint64_t state_mask, const char* state_name) {
  std::string found, missing;
  for (const Feature& f : features) {
    std::string& list = cpuid_register(f.leaf, f.reg) >> f.bit & 1 ? found : missing;
    list += list.empty() ? f.name : std::string(" ") + f.name;
  }
  if (!missing.empty()) return {isa, false, "the CPU lacks " + missing};
  if ((enabled_state() & state_mask) != state_mask)
    return {isa, false, std::string("the operating system has not enabled ") + state_name + " (XCR0)"};
  return {isa, true, "the CPU has " + found + " and the operating system has enabled " + state_name};
}

#endif

std::vector<IsaLevel> detect() {
  std::vector<IsaLevel> levels;
#if defined(__x86_64__)
  levels.push_back(x86_level(Isa::kAvx512,
                             {{"avx512f", 7, 'b', 16}, {"avx512dq", 7, 'b', 17}, {"avx512bw", 7, 'b', 30},
                              {"avx512vl", 7, 'b', 31}, {"avx2", 7, 'b', 5}, {"fma", 1, 'c', 12}, {"f16c", 1, 'c', 29}},
                             0xe6, "the AVX-512 state"));
  levels.push_back(x86_level(Isa::kAvx2, {{"avx2", 7, 'b', 5}, {"fma", 1, 'c', 12}, {"f16c", 1, 'c', 29}}, 0x6,
                             "the AVX state"));
  levels.push_back({Isa::kPortable, true, "SSE2, which every x86-64 CPU has"});
#elif defined(__aarch64__)
  levels.push_back({Isa::kPortable, true, "NEON, which every aarch64 CPU has"});
#else
  levels.push_back({Isa::kPortable, true, "the compiler's generic vectors"});
#endif
  return levels;
}

}  // namespace

const std::vector<IsaLevel>& isa_levels() {
  static const std::vector<IsaLevel> levels = detect();
  return levels;
}

IsaChoice choose_isa() {
  const char* forced = std::getenv("ORT_HINA_ISA");
  if (!forced || !*forced) {
    for (const IsaLevel& level : isa_levels())
      if (level.available) return {level.isa, "best of this CPU: " + level.reason};
  }
  std::string known;
  for (const IsaLevel& level : isa_levels()) {
    known += std::string(known.empty() ? "" : ", ") + name_of(level.isa);
    if (forced && std::string(forced) == name_of(level.isa)) {
      if (level.available) return {level.isa, "forced by ORT_HINA_ISA"};
      throw std::invalid_argument(std::string("ORT_HINA_ISA=") + forced + ", but " + level.reason);
    }
  }
  throw std::invalid_argument(std::string("ORT_HINA_ISA=") + (forced ? forced : "") +
                              " is not a level of this build; expected one of: " + known);
}

size_t usable_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return static_cast<size_t>(CPU_COUNT(&set));
  const unsigned n = std::thread::hardware_concurrency();
  return n ? n : 1;
}

}  // namespace ort_hina::runtime
