// Every kernel of every instruction level that runs here, the emulator, the detection of levels; without Python and without
// ONNX Runtime.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "crash_note.h"
#include "levels.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

constexpr const char* kUsage =
    "usage: native_tests [--isa NAME] [--only TEXT] [--seed N] [--stress SHAPES] [--list]\n"
    "  --isa NAME       this instruction level only\n"
    "  --only TEXT      only tests whose name contains TEXT\n"
    "  --seed N         other random numbers\n"
    "  --stress SHAPES  instead of the tests: random matmuls, each on up to 64 threads at once\n"
    "  --list           the tests that would run\n";

constexpr size_t kStressOfPlainRun = 20;

struct Options {
  std::string isa, only;
  uint64_t seed = 1;
  size_t stress = 0;
  bool list = false;
};

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list") {
      options->list = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--isa") options->isa = argv[i];
    else if (name == "--only") options->only = argv[i];
    else if (name == "--seed") options->seed = std::strtoull(argv[i], nullptr, 10);
    else if (name == "--stress") options->stress = std::strtoull(argv[i], nullptr, 10);
    else return false;
  }
  return true;
}

Test stress_test(const std::vector<Isa>& levels, size_t shapes) {
  return {"-", "stress", [=](Random& random, Outcome& outcome) { outcome = stress(levels, shapes, random); }};
}

Tests all_tests(const std::vector<Isa>& levels, size_t stress_shapes) {
  if (stress_shapes) return {stress_test(levels, stress_shapes)};
  Tests tests;
  add_self_checks(tests);
  add_detection_tests(tests);
  add_numa_tests(tests);
  for (const Isa level : levels) {
    add_matmul_tests(level, tests);
    add_activation_tests(level, tests);
    add_pack_tests(level, tests);
    add_combine_tests(level, tests);
    add_router_tests(level, tests);
    add_attention_tests(level, tests);
    if (level == Isa::kAmx) add_amx_tests(tests);
  }
  if (amx_is_emulated()) add_emulator_tests(tests);
  tests.push_back(stress_test(levels, kStressOfPlainRun));
  return tests;
}

uint64_t hash(const std::string& name) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

// Each test has random numbers of its own, whatever ran before.
bool run_test(const Test& test, uint64_t seed) {
  const auto start = std::chrono::steady_clock::now();
  Random random(seed ^ hash(test.name));
  Outcome outcome;
  set_crash_note(test.isa + " " + test.name);
  test.run(random, outcome);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%-6s %-12s %-40s %6zu cases, worst error %.3f of its bound, %.2f s%s%s\n", outcome.failed() ? "FAILED" : "ok",
              test.isa.c_str(), test.name.c_str(), outcome.cases, outcome.worst, seconds, outcome.note.empty() ? "" : "; ",
              outcome.note.c_str());
  if (outcome.failed()) std::printf("       %s\n", outcome.failure.c_str());
  return !outcome.failed();
}

bool wanted(const Options& options, const Test& test) {
  return (options.isa.empty() || options.isa == test.isa) && test.name.find(options.only) != std::string::npos;
}

// The levels that --isa leaves. Says which there are where it names none of them.
std::vector<Isa> chosen_levels(const Options& options) {
  const std::vector<Isa> available = available_levels();
  if (options.isa.empty() || options.isa == "-") return available;
  for (const Isa level : available)
    if (options.isa == name_of(level)) return {level};
  std::fprintf(stderr, "%s does not run here; these do:", options.isa.c_str());
  for (const Isa level : available) std::fprintf(stderr, " %s", name_of(level));
  std::fprintf(stderr, "\n");
  return {};
}

int run(const Options& options) {
  const std::vector<Isa> levels = chosen_levels(options);
  if (levels.empty()) return 2;
  size_t count = 0, failures = 0;
  for (const Test& test : all_tests(levels, options.stress)) {
    if (!options.stress && !wanted(options, test)) continue;
    ++count;
    if (options.list) std::printf("%-12s %s\n", test.isa.c_str(), test.name.c_str());
    else failures += !run_test(test, options.seed);
  }
  if (!options.list)
    std::printf("%zu tests, %zu failed; best level %s%s\n", count, failures, name_of(levels.back()),
                levels.back() == Isa::kAmx && amx_is_emulated() ? " (emulated)" : "");
  if (!count) std::fprintf(stderr, "no such test\n");
  return failures || !count;
}

}  // namespace
}  // namespace ort_hina::native_tests

int main(int argc, char** argv) {
  using namespace ort_hina::native_tests;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  install_crash_note();
  start_emulator_if_needed();
  return run(options);
}
