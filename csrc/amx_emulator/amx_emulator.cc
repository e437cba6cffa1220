#include "amx_emulator/amx_emulator.h"

#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "amx_emulator/execute.h"
#include "amx_emulator/handler.h"
#include "amx_emulator/tile_state.h"

#if !defined(__x86_64__) || !defined(__linux__)
#error "x86-64 Linux only"
#endif

namespace ort_hina::amx_emulator {

struct sigaction previous_handler;
std::atomic<bool> installed{false};

namespace {

std::atomic<uint64_t> traps;

void run_with_default_action(int signal, const siginfo_t* info) {
  struct sigaction standard;
  memset(&standard, 0, sizeof standard);
  standard.sa_handler = SIG_DFL;
  __sigaction(SIGILL, &standard, nullptr);
  if (info->si_code <= 0) raise(signal);  // else the instruction raises it again
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& to = previous_handler;
  if (to.sa_flags & SA_SIGINFO) to.sa_sigaction(signal, info, context);
  else if (to.sa_handler != SIG_DFL && to.sa_handler != SIG_IGN) to.sa_handler(signal);
  else run_with_default_action(signal, info);
}

void on_sigill(int signal, siginfo_t* info, void* context) {
  auto* at = static_cast<ucontext_t*>(context);
  Instruction in;
  // A SIGILL that kill() or raise() sent is not about the instruction at RIP.
  if (info->si_code <= 0 || !decode(at, &in)) return pass_on(signal, info, context);
  const int saved_errno = errno;
  do {  // AMX instructions in a row cost one signal
    execute(in);
    at->uc_mcontext.gregs[REG_RIP] += in.length;
  } while (decode(at, &in));
  traps.fetch_add(1, std::memory_order_relaxed);
  errno = saved_errno;
}

bool cpu_has_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1)) return false;  // AMX-TILE
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 27 & 1);                         // OSXSAVE
}

bool system_saves_tiles() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}

}  // namespace
}  // namespace ort_hina::amx_emulator

using namespace ort_hina::amx_emulator;

extern "C" {

int amx_emu_native(void) {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return cpu_has_tiles() && system_saves_tiles() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int amx_emu_install(void) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return -1;
  prepare_thread_states();
  struct sigaction ours, old;
  if (__sigaction(SIGILL, nullptr, &old) != 0) return -1;
  if ((old.sa_flags & SA_SIGINFO) && old.sa_sigaction == on_sigill) return 0;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_sigill;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  previous_handler = old;
  if (__sigaction(SIGILL, &ours, nullptr) != 0) return -1;
  installed = true;
  return 0;
}

void amx_emu_uninstall(void) {
  if (installed.exchange(false)) __sigaction(SIGILL, &previous_handler, nullptr);
}

int amx_emu_installed(void) { return installed; }
void amx_emu_set_features(unsigned mask) { features = mask; }
amx_emu_fault_hook amx_emu_set_fault_hook(amx_emu_fault_hook hook) { return fault_hook.exchange(hook); }
uint64_t amx_emu_count(enum amx_emu_op op) { return counts[op]; }
uint64_t amx_emu_traps(void) { return traps; }
const char* amx_emu_op_name(enum amx_emu_op op) { return name_of(op); }

uint64_t amx_emu_total(void) {
  uint64_t sum = 0;
  for (const auto& count : counts) sum += count;
  return sum;
}

void amx_emu_reset_counts(void) {
  for (auto& count : counts) count = 0;
  traps = 0;
}

}  // extern "C"
