#include "crash_note.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

namespace ort_hina::native_tests {
namespace {

// No string: the handler may run in the middle of an assignment.
thread_local char note[512];

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
}

void on_crash(int signal) {
  write_text("crashed in ");
  write_text(note);
  write_text("\n");
  raise(signal);
}

}  // namespace

void install_crash_note() {
  // Where a sanitizer is in front already, its report says more.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) {
    struct sigaction ours = {}, before;
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    ours.sa_handler = on_crash;
    ours.sa_flags = SA_RESETHAND;
    sigaction(signal, &ours, nullptr);
  }
}

void set_crash_note(const std::string& text) { std::strncpy(note, text.c_str(), sizeof note - 1); }

}  // namespace ort_hina::native_tests
