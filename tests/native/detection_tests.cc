// Which levels are found on CPUs that are not this one, and how one is chosen.
#include <cstdlib>
#include <map>
#include <stdexcept>

#include "runtime/cpu.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using runtime::CpuidRegisters;
using runtime::IsaLevel;

constexpr uint32_t kOsxsave = 1u << 27, kFma = 1u << 12, kF16c = 1u << 29;
constexpr uint32_t kAvx2 = 1u << 5;
constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
constexpr uint32_t kAmx = 1u << 22 | 1u << 24;
constexpr uint32_t kAvx512Bf16 = 1u << 5;

struct Machine {
  const char* name;
  uint32_t leaf1_c, leaf7_b, leaf7_d, leaf7_1_a;
  uint64_t xcr0;
  int permission;
  Isa best;
  const char* amx_reason;  // begins so
};

constexpr uint32_t kOld = kOsxsave | kFma | kF16c;
constexpr uint32_t kAvx2And512 = kAvx2 | kAvx512;
const std::vector<Machine> kMachines = {
    {"Zen 3", kOld, kAvx2, 0, 0, 0x7, 0, Isa::kAvx2, "the CPU lacks amx-bf16 amx-tile"},
    {"Skylake-X", kOld, kAvx2And512, 0, 0, 0xe7, 0, Isa::kAvx512, "the CPU lacks amx-bf16 amx-tile"},
    {"Zen 4", kOld, kAvx2And512, 0, kAvx512Bf16, 0xe7, 0, Isa::kAvx512Bf16, "the CPU lacks amx-bf16 amx-tile"},
    {"Sapphire Rapids", kOld, kAvx2And512, kAmx, kAvx512Bf16, 0x600e7, 0, Isa::kAmx, "the CPU has amx-bf16 amx-tile"},
    {"no AMX state", kOld, kAvx2And512, kAmx, kAvx512Bf16, 0xe7, 0, Isa::kAvx512Bf16, "the operating system has not"},
    {"no permission", kOld, kAvx2And512, kAmx, kAvx512Bf16, 0x600e7, 1, Isa::kAvx512Bf16, "the operating system refuses"},
    {"no AVX-512 state", kOld, kAvx2And512, kAmx, kAvx512Bf16, 0x60007, 0, Isa::kAvx2, "it needs avx512_bf16: it needs"},
    {"no OSXSAVE", kFma | kF16c, kAvx2And512, kAmx, kAvx512Bf16, 0x600e7, 0, Isa::kPortable, "it needs avx512_bf16"},
    {"AVX-512 without AVX2", kOld, kAvx512, kAmx, kAvx512Bf16, 0x600e7, 0, Isa::kPortable, "it needs avx512_bf16"},
};

std::vector<IsaLevel> levels_of(const Machine& m) {
  const std::map<std::pair<uint32_t, uint32_t>, CpuidRegisters> table = {
      {{1, 0}, {0, 0, m.leaf1_c, 0}}, {{7, 0}, {1, m.leaf7_b, 0, m.leaf7_d}}, {{7, 1}, {m.leaf7_1_a, 0, 0, 0}}};
  return runtime::x86_levels({[&](uint32_t leaf, uint32_t subleaf) {
                                const auto found = table.find({leaf, subleaf});
                                return found == table.end() ? CpuidRegisters{} : found->second;
                              },
                              [&] { return m.xcr0; }, [&] { return m.permission; }});
}

void check_machines(Random&, Outcome& outcome) {
  for (const Machine& m : kMachines) {
    const std::vector<IsaLevel> levels = levels_of(m);
    ++outcome.cases;
    for (const IsaLevel& level : levels)
      outcome.require(level.available == (level.isa <= m.best),
                      std::string(m.name) + ": " + name_of(level.isa) + " " + level.reason);
    outcome.require(levels.front().isa == Isa::kAmx, "AMX is the best level");
    outcome.require(levels.front().reason.rfind(m.amx_reason, 0) == 0, std::string(m.name) + ": " + levels.front().reason);
  }
}

// The permission is asked for only where it can be granted, and XCR0 read only where it can be.
void check_what_is_asked(Random&, Outcome& outcome) {
  const auto never = [&](const char* what) {
    return [&outcome, what] {
      outcome.fail(what);
      return 0;
    };
  };
  ++outcome.cases;
  const auto no_features = [](uint32_t, uint32_t) { return CpuidRegisters{}; };
  runtime::x86_levels({no_features, never("XCR0 is read"), never("tiles are asked for")});
}

std::string refusal() {
  try {
    runtime::choose_isa();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "";
}

void check_choice(Random&, Outcome& outcome) {
  const char* before = std::getenv("ORT_HINA_ISA");
  const std::string saved = before ? before : "";
  for (const IsaLevel& level : runtime::isa_levels()) {
    setenv("ORT_HINA_ISA", name_of(level.isa), 1);
    ++outcome.cases;
    if (level.available) outcome.require(runtime::choose_isa().isa == level.isa, "a forced level is not chosen");
    else outcome.require(refusal().find(level.reason) != std::string::npos, "a lacking level is not refused: " + refusal());
  }
  setenv("ORT_HINA_ISA", "sse9", 1);
  outcome.require(refusal().find("is not a level of this build") != std::string::npos, "an unknown level is not refused");
  unsetenv("ORT_HINA_ISA");
  const Isa best = runtime::choose_isa().isa;
  for (const IsaLevel& level : runtime::isa_levels())
    outcome.require(level.emulated ? level.isa != best : level.isa <= best || !level.available,
                    "the best level is not chosen, or an emulated one is");
  if (before) setenv("ORT_HINA_ISA", saved.c_str(), 1);
}

}  // namespace

void add_detection_tests(Tests& tests) {
  tests.push_back({"-", "detection: machines", check_machines});
  tests.push_back({"-", "detection: what is asked", check_what_is_asked});
  tests.push_back({"-", "detection: choice", check_choice});
}

}  // namespace ort_hina::native_tests
