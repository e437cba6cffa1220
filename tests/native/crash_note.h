// Says what was running when a signal ends the program: a read outside of guarded memory does.
#pragma once
#include <string>

namespace ort_hina::native_tests {

void install_crash_note();

// Of the calling thread, from now on.
void set_crash_note(const std::string& text);

}  // namespace ort_hina::native_tests
