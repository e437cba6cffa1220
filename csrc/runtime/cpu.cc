#include "runtime/cpu.h"

#include <sched.h>

#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace ort_hina::runtime {
namespace {

struct Feature {
  const char* name;
  uint32_t leaf, subleaf;
  uint32_t CpuidRegisters::*reg;
  int bit;
};

struct Requirements {
  Isa isa;
  std::vector<Feature> features;  // beyond those of the level below
  uint64_t state;                 // bits of XCR0
  const char* state_name;
};

// Worst first.
std::vector<Requirements> x86_requirements() {
  constexpr auto b = &CpuidRegisters::b;
  constexpr auto c = &CpuidRegisters::c;
  return {
      {Isa::kAvx2, {{"avx2", 7, 0, b, 5}, {"fma", 1, 0, c, 12}, {"f16c", 1, 0, c, 29}}, 0x6, "the AVX state"},
      {Isa::kAvx512,
       {{"avx512f", 7, 0, b, 16}, {"avx512dq", 7, 0, b, 17}, {"avx512bw", 7, 0, b, 30}, {"avx512vl", 7, 0, b, 31}},
       0xe6,
       "the AVX-512 state"},
      {Isa::kAvx512Bf16, {{"avx512_bf16", 7, 1, &CpuidRegisters::a, 5}}, 0xe6, "the AVX-512 state"},
      {Isa::kAmx,
       {{"amx-bf16", 7, 0, &CpuidRegisters::d, 22}, {"amx-tile", 7, 0, &CpuidRegisters::d, 24}},
       0x600e6,
       "the AMX state"},
  };
}

bool has(const X86Source& source, const Feature& f) {
  // What lies beyond the last subleaf of leaf 7 is undefined; register a of its first one names that last.
  if (f.subleaf > 0 && source.cpuid(f.leaf, 0).a < f.subleaf) return false;
  return source.cpuid(f.leaf, f.subleaf).*f.reg >> f.bit & 1;
}

uint64_t enabled_state(const X86Source& source) {
  const bool osxsave = source.cpuid(1, 0).c >> 27 & 1;
  return osxsave ? source.xcr0() : 0;
}

// CPU and system must agree: a hypervisor may advertise what the system has not enabled.
IsaLevel x86_level(const X86Source& source, const Requirements& wanted, const IsaLevel& below) {
  std::string found, missing;
  for (const Feature& f : wanted.features) {
    std::string& list = has(source, f) ? found : missing;
    list += list.empty() ? f.name : std::string(" ") + f.name;
  }
  const auto lacking = [&](const std::string& reason) { return IsaLevel{wanted.isa, false, reason}; };
  if (!missing.empty()) return lacking("the CPU lacks " + missing);
  if (!below.available) return lacking(std::string("it needs ") + name_of(below.isa) + ": " + below.reason);
  if ((enabled_state(source) & wanted.state) != wanted.state)
    return lacking(std::string("the operating system has not enabled ") + wanted.state_name + " (XCR0)");
  if (wanted.isa == Isa::kAmx) {
    if (const int error = source.request_tiles())
      return lacking("the operating system refuses the permission to use AMX tiles (" +
                     std::generic_category().message(error) + ")");
  }
  return {wanted.isa, true, "the CPU has " + found + " and the operating system has enabled " + wanted.state_name};
}

#if defined(__x86_64__)

CpuidRegisters cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegisters r{};
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

uint64_t xcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux enlarges a thread's saved state by the 8 KiB of tiles only where a process has asked for it.
int request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
}

std::vector<IsaLevel> detect() { return x86_levels({cpuid, xcr0, request_tiles}); }

#elif defined(__aarch64__)

std::vector<IsaLevel> detect() { return {{Isa::kPortable, true, "NEON, which every aarch64 CPU has"}}; }

#else

std::vector<IsaLevel> detect() { return {{Isa::kPortable, true, "the compiler's generic vectors"}}; }

#endif

// The vector instructions of AMX's kernels are not emulated.
std::vector<IsaLevel> with_emulated_amx(std::vector<IsaLevel> levels) {
  IsaLevel& best = levels.front();
  if (best.isa == Isa::kAmx && !best.available && levels[1].available)
    best = {Isa::kAmx, true, "ORT_HINA_EMULATED_AMX, for tests: instructions without an emulator would be fatal", true};
  return levels;
}

bool emulation_wanted() {
  const char* value = std::getenv("ORT_HINA_EMULATED_AMX");
  return value && std::string(value) == "1";
}

IsaChoice best_of_this_cpu() {
  for (const IsaLevel& level : isa_levels())
    if (level.available && !level.emulated) return {level.isa, "best of this CPU: " + level.reason};
  throw std::logic_error("no portable level");
}

}  // namespace

std::vector<IsaLevel> x86_levels(const X86Source& source) {
  std::vector<IsaLevel> levels = {{Isa::kPortable, true, "SSE2, which every x86-64 CPU has"}};
  for (const Requirements& wanted : x86_requirements()) levels.push_back(x86_level(source, wanted, levels.back()));
  return {levels.rbegin(), levels.rend()};
}

const std::vector<IsaLevel>& isa_levels() {
  static const std::vector<IsaLevel> levels = detect();
  static const std::vector<IsaLevel> levels_of_tests = with_emulated_amx(levels);
  return emulation_wanted() ? levels_of_tests : levels;
}

IsaChoice choose_isa() {
  const char* forced = std::getenv("ORT_HINA_ISA");
  if (!forced || !*forced) return best_of_this_cpu();
  std::string known;
  for (const IsaLevel& level : isa_levels()) {
    known += std::string(known.empty() ? "" : ", ") + name_of(level.isa);
    if (std::string(forced) != name_of(level.isa)) continue;
    if (level.available) return {level.isa, "forced by ORT_HINA_ISA"};
    throw std::invalid_argument(std::string("ORT_HINA_ISA=") + forced + ", but " + level.reason);
  }
  throw std::invalid_argument(std::string("ORT_HINA_ISA=") + forced +
                              " is not a level of this build; expected one of: " + known);
}

size_t usable_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return static_cast<size_t>(CPU_COUNT(&set));
  const unsigned n = std::thread::hardware_concurrency();
  return n ? n : 1;
}

}  // namespace ort_hina::runtime
