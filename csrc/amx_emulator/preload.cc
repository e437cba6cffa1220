// What the shared library does beyond the linked-in emulator: it installs itself, keeps its handler in front, and grants the
// permission for tiles.
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "amx_emulator/amx_emulator.h"
#include "amx_emulator/handler.h"

namespace ort_hina::amx_emulator {
namespace {

constexpr long kGetPermission = 0x1022, kRequestPermission = 0x1023, kTileData = 18;
constexpr uint64_t kPermissions = 0x602E7;  // up to AVX-512, and tiles

long system_call(long number, const long* a) {
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result >= 0 || result <= -4096) return result;
  errno = static_cast<int>(-result);
  return -1;
}

__attribute__((constructor)) void install() {
  if (!amx_emu_native() && amx_emu_install() != 0) dprintf(2, "amx_emulator: this CPU lacks AVX2, FMA or F16C\n");
}

__attribute__((destructor)) void print_counts() {
  if (!getenv("AMX_EMU_STATS") || !amx_emu_total()) return;
  dprintf(2, "amx_emulator: %lu instructions, %lu traps:", amx_emu_total(), amx_emu_traps());
  for (int i = 0; i < AMX_EMU_OP_COUNT; ++i) {
    const auto op = static_cast<amx_emu_op>(i);
    if (amx_emu_count(op)) dprintf(2, " %s %lu", amx_emu_op_name(op), amx_emu_count(op));
  }
  dprintf(2, "\n");
}

}  // namespace
}  // namespace ort_hina::amx_emulator

using namespace ort_hina::amx_emulator;

#pragma GCC visibility push(default)
extern "C" {

// Others (Python's faulthandler, crash reporters) may take SIGILL later: theirs is remembered, ours stays in front.
int sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
  if (signal != SIGILL || !installed) return __sigaction(signal, action, old);
  if (old) *old = previous_handler;
  if (action) previous_handler = *action;
  return 0;
}

typedef void (*plain_handler)(int);
plain_handler signal(int number, plain_handler handler) {
  struct sigaction action, old;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  return sigaction(number, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

long syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& x : a) x = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_arch_prctl && installed) {
    if (a[0] == kRequestPermission && a[1] == kTileData) return 0;
    if (a[0] == kGetPermission) {
      *reinterpret_cast<uint64_t*>(a[1]) = kPermissions;
      return 0;
    }
  }
  return system_call(number, a);
}

}  // extern "C"
#pragma GCC visibility pop
