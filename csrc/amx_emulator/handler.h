// Where the emulator stands among the handlers of SIGILL.
#pragma once
#include <signal.h>

#include <atomic>

// glibc's own, which the preloaded library does not replace.
extern "C" int __sigaction(int, const struct sigaction*, struct sigaction*);

namespace ort_hina::amx_emulator {

extern struct sigaction previous_handler;
extern std::atomic<bool> installed;

}  // namespace ort_hina::amx_emulator
