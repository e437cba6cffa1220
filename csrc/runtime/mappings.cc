#include "runtime/mappings.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <sstream>

#include "runtime/system_files.h"

namespace ort_hina::runtime {
namespace {

// Memory of malloc and mmap; other mappings without an inode are the kernel's, or a device's.
bool is_plain_memory(const std::string& name) { return name.empty() || name == "[heap]" || name.rfind("[anon:", 0) == 0; }

// "7f0000000000-7f0000001000 rw-p 00000000 08:01 1234       /path"
bool parse(const std::string& line, Mapping* mapping) {
  char access[5] = {};
  unsigned long inode = 0;
  int name = 0;
  const int fields = std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*[0-9a-f:] %lu%n", &mapping->pages.begin,
                                 &mapping->pages.end, access, &inode, &name);
  if (fields != 4) return false;
  const size_t begin = line.find_first_not_of(' ', static_cast<size_t>(name));
  mapping->name = begin == std::string::npos ? "" : line.substr(begin);
  mapping->writable = access[1] == 'w';
  mapping->shared = access[3] == 's';
  mapping->anonymous = inode == 0 && !mapping->shared && is_plain_memory(mapping->name);
  return true;
}

}  // namespace

std::vector<Mapping> mappings_in(const PageRange& pages) {
  std::vector<Mapping> found;
  std::istringstream lines(read_text("/proc/self/maps"));
  Mapping mapping;
  for (std::string line; std::getline(lines, line);) {
    if (!parse(line, &mapping)) continue;
    mapping.pages.begin = std::max(mapping.pages.begin, pages.begin);
    mapping.pages.end = std::min(mapping.pages.end, pages.end);
    if (mapping.pages.bytes()) found.push_back(mapping);
  }
  return found;
}

}  // namespace ort_hina::runtime
