// Small text files of the kernel (/sys, /proc) and the lists of numbers in them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ort_hina::runtime {

// Empty where the file cannot be read: containers hide some, and old kernels lack some.
std::string read_text(const std::string& path);

// "0-31,64-95" → the numbers, ascending. What is no such list ends it, and so do numbers of 65536 and more.
std::vector<uint32_t> parse_numbers(const std::string& text);

// The rest of the line that begins with `key` ("Mems_allowed_list:"), without the blanks around it. Empty: there is none.
std::string line_value(const std::string& text, const std::string& key);

}  // namespace ort_hina::runtime
