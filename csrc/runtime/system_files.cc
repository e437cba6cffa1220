#include "runtime/system_files.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace ort_hina::runtime {
namespace {

constexpr unsigned long kNumbers = 65536;

bool read_number(const char** at, unsigned long* number) {
  if (**at < '0' || **at > '9') return false;
  char* end = nullptr;
  *number = std::strtoul(*at, &end, 10);
  *at = end;
  return *number < kNumbers;
}

}  // namespace

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::vector<uint32_t> parse_numbers(const std::string& text) {
  std::vector<uint32_t> numbers;
  unsigned long first = 0, last = 0;
  for (const char* at = text.c_str(); read_number(&at, &first); ++at) {
    last = first;
    if (*at == '-' && !read_number(&++at, &last)) break;
    for (unsigned long n = first; n <= last; ++n) numbers.push_back(static_cast<uint32_t>(n));
    if (*at != ',') break;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::string line_value(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", key.size());
    return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  }
  return "";
}

}  // namespace ort_hina::runtime
