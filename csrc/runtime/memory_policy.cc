#include "runtime/memory_policy.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace ort_hina::runtime {
namespace {

constexpr unsigned kMoveOwnPages = 1 << 1;     // MPOL_MF_MOVE
constexpr unsigned kPolicyOfAddress = 1 << 1;  // MPOL_F_ADDR
constexpr int kModeBits = 0xFF;                // the kernel may add flags above

// As many as any kernel is built for. It wants to be told one bit more than it reads.
constexpr size_t kMaskBits = 1024, kBitsOfWord = 8 * sizeof(unsigned long);

std::vector<unsigned long> mask_of(const std::vector<uint32_t>& nodes) {
  std::vector<unsigned long> mask(kMaskBits / kBitsOfWord + 1);
  for (uint32_t node : nodes)
    if (node < kMaskBits) mask[node / kBitsOfWord] |= 1ul << node % kBitsOfWord;
  return mask;
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

int advise(const PageRange& pages, int advice) {
  while (madvise(pointer(pages.begin), pages.bytes(), advice) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

// Asked with a page that has nothing else against it.
bool kernel_populates() {
  static const bool answer = [] {
    void* page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    const bool done = madvise(page, page_size(), MADV_POPULATE_READ) == 0;
    munmap(page, page_size());
    return done;
  }();
  return answer;
}

template <typename Touch>
void touch(const PageRange& pages, const Touch& one) {
  for (uintptr_t page = pages.begin; page < pages.end; page += page_size()) one(static_cast<volatile uint8_t*>(pointer(page)));
}

}  // namespace

size_t page_size() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

PageRange pages_inside(const void* begin, size_t bytes) {
  const uintptr_t page = page_size(), address = reinterpret_cast<uintptr_t>(begin);
  return {(address + page - 1) / page * page, (address + bytes) / page * page};
}

PageRange pages_around(const void* begin, size_t bytes) {
  const uintptr_t page = page_size(), address = reinterpret_cast<uintptr_t>(begin);
  return {address / page * page, bytes ? (address + bytes + page - 1) / page * page : address / page * page};
}

int set_policy(const PageRange& pages, Policy policy, const std::vector<uint32_t>& nodes, bool move) {
  const std::vector<unsigned long> mask = mask_of(nodes);
  return syscall(__NR_mbind, pages.begin, pages.bytes(), static_cast<int>(policy), mask.data(), kMaskBits + 1,
                 move ? kMoveOwnPages : 0u) == 0
             ? 0
             : errno;
}

bool has_policy(uintptr_t address, Policy policy, const std::vector<uint32_t>& nodes) {
  std::vector<unsigned long> mask(kMaskBits / kBitsOfWord + 1);
  int mode = 0;
  if (syscall(__NR_get_mempolicy, &mode, mask.data(), kMaskBits + 1, address, kPolicyOfAddress) != 0) return false;
  return (mode & kModeBits) == static_cast<int>(policy) && mask == mask_of(nodes);
}

int query_nodes(uintptr_t first, size_t count, int* nodes) {
  std::vector<void*> pages(count);
  for (size_t i = 0; i < count; ++i) pages[i] = pointer(first + i * page_size());
  return syscall(__NR_move_pages, 0, count, pages.data(), nullptr, nodes, 0) == 0 ? 0 : errno;
}

int populate_read(const PageRange& pages) {
  if (kernel_populates()) return advise(pages, MADV_POPULATE_READ);
  touch(pages, [](volatile uint8_t* byte) { static_cast<void>(*byte); });
  return 0;
}

int populate_write(const PageRange& pages) {
  if (kernel_populates()) return advise(pages, MADV_POPULATE_WRITE);
  // A write that changes nothing, whoever else writes there.
  touch(pages, [](volatile uint8_t* byte) { __atomic_fetch_or(byte, uint8_t{0}, __ATOMIC_RELAXED); });
  return 0;
}

}  // namespace ort_hina::runtime
