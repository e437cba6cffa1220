#include "runtime/replacement.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "runtime/mappings.h"
#include "runtime/memory_policy.h"
#include "runtime/placement.h"

namespace ort_hina::runtime {
namespace {

// How much of it is in memory twice while anonymous memory is exchanged; whole huge pages.
constexpr size_t kPiece = size_t{64} << 20, kHugePage = size_t{2} << 20;

// Pages that are to be under one rule.
struct Part {
  PageRange pages;
  Policy policy;
  std::vector<uint32_t> nodes;  // ids
};

// What stops a replacement.
struct Refusal {
  std::string what;
};

void require(int error, const char* what, size_t bytes) {
  if (error)
    throw Refusal{std::string(what) + " of " + std::to_string(bytes) + " bytes: " + std::strerror(error)};
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

PageRange intersection(const PageRange& a, const PageRange& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

// Anonymous memory that is to take the place of a range. It begins as far from a huge page as the range, so that huge pages can
// be exchanged whole.
class Exchange {
 public:
  explicit Exchange(const PageRange& target) : target_(target) {
    reserved_bytes_ = target.bytes() + kHugePage;
    reserved_ = mmap(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(reserved_ == MAP_FAILED ? errno : 0, "mmap", reserved_bytes_);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(reserved_);
    shift_ = begin + (target.begin - begin) % kHugePage - target.begin;
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  // Without what has taken its place.
  ~Exchange() { munmap(reserved_, reserved_bytes_); }

  // Where the pages that will come to `pages` of the range are now.
  PageRange source(const PageRange& pages) const { return {pages.begin + shift_, pages.end + shift_}; }

  // They must be one mapping, populated.
  void exchange(const PageRange& pages) const {
    std::memcpy(pointer(source(pages).begin), pointer(pages.begin), pages.bytes());
    void* moved = mremap(pointer(source(pages).begin), pages.bytes(), pages.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED,
                         pointer(pages.begin));
    require(moved == MAP_FAILED ? errno : 0, "mremap", pages.bytes());
  }

 private:
  const PageRange target_;
  void* reserved_;
  size_t reserved_bytes_;
  uintptr_t shift_;  // may wrap around
};

// Gives all of `pages` the rule that they end with, before and after parts of them have their own. Neighbours with different
// rules are different mappings, of which a process may have 65530; and they can be joined again only if they have had a page in
// common before.
class CommonRule {
 public:
  CommonRule(const PageRange& pages, const std::vector<uint32_t>& nodes) : pages_(pages), nodes_(nodes) {
    require(set_policy(pages, Policy::kInterleave, nodes), "mbind", pages.bytes());
    const PageRange first = {pages.begin, pages.begin + page_size()};
    require(populate_write(first), "populating", first.bytes());
  }
  CommonRule(const CommonRule&) = delete;
  CommonRule& operator=(const CommonRule&) = delete;
  ~CommonRule() { set_policy(pages_, Policy::kInterleave, nodes_); }

 private:
  const PageRange pages_;
  const std::vector<uint32_t>& nodes_;
};

class Placer {
 public:
  Placer(std::vector<Part> parts, std::vector<uint32_t> nodes) : parts_(std::move(parts)), nodes_(std::move(nodes)) {}

  void place(const Mapping& mapping, Replacement* result) const {
    if (mapping.shared || !mapping.writable)
      throw Refusal{"memory of " + (mapping.name.empty() ? "an unnamed mapping" : mapping.name) + " is " +
                    (mapping.shared ? "shared with other processes" : "read-only") + ": expected a private, writable mapping"};
    if (!in_place(mapping)) {
      if (mapping.anonymous) exchange(mapping.pages);
      else copy(mapping.pages, result);
    }
    result->bytes += mapping.pages.bytes();
  }

 private:
  template <typename Do>
  void for_each_part(const PageRange& pages, const Do& act) const {
    for (const Part& part : parts_) {
      const PageRange common = intersection(part.pages, pages);
      if (common.bytes()) act(common, part);
    }
  }

  bool bound() const { return parts_.front().policy != Policy::kInterleave; }

  bool in_place(const Mapping& mapping) const {
    // Interleaved anonymous memory lies by its address, a file's by how it was read.
    if (!bound()) return mapping.anonymous && has_policy(mapping.pages.begin, Policy::kInterleave, nodes_);
    bool all = true;
    for_each_part(mapping.pages, [&](const PageRange& pages, const Part& part) { all = all && lies_on(pages, part.nodes[0]); });
    return all;
  }

  static bool lies_on(const PageRange& pages, uint32_t id) {
    const size_t batch = kPiece / page_size();
    std::vector<int> status(batch);
    for (uintptr_t page = pages.begin; page < pages.end; page += batch * page_size()) {
      const size_t count = std::min(batch, (pages.end - page) / page_size());
      if (query_nodes(page, count, status.data()) != 0) return false;
      for (size_t i = 0; i < count; ++i)
        if (status[i] != static_cast<int>(id)) return false;
    }
    return true;
  }

  void populate(const PageRange& pages, const Part& part) const {
    require(set_policy(pages, part.policy, part.nodes), "mbind", pages.bytes());
    for (PageRange piece = pages; piece.begin < pages.end; piece.begin = piece.end) {
      piece.end = std::min(pages.end, piece.begin + kPiece);
      require(populate_write(piece), "populating", piece.bytes());
    }
  }

  // A private mapping of a file: a page that is written to becomes the process's own, on the node that the rule says.
  void copy(const PageRange& all, Replacement* result) const {
    const CommonRule rule(all, nodes_);
    for_each_part(all, [&](const PageRange& pages, const Part& part) {
      populate(pages, part);
      // Those that had been written to before.
      if (bound() && !lies_on(pages, part.nodes[0])) set_policy(pages, part.policy, part.nodes, /*move=*/true);
      result->copied_bytes += pages.bytes();
    });
  }

  // Anonymous memory: the kernel would not move pages of an interleaved range, since all of its nodes are right for all of them.
  void exchange(const PageRange& all) const {
    const Exchange fresh(all);
    { const CommonRule rule(fresh.source(all), nodes_); }
    madvise(pointer(fresh.source(all).begin), page_size(), MADV_DONTNEED);  // it may have to lie elsewhere
    for (PageRange piece = all; piece.begin < all.end; piece.begin = piece.end) {
      piece.end = std::min(all.end, (piece.begin + kPiece) / kHugePage * kHugePage);
      const PageRange source = fresh.source(piece);
      for_each_part(piece, [&](const PageRange& pages, const Part& part) { populate(fresh.source(pages), part); });
      require(set_policy(source, Policy::kInterleave, nodes_), "mbind", source.bytes());
      fresh.exchange(piece);
    }
  }

  const std::vector<Part> parts_;
  const std::vector<uint32_t> nodes_;  // of all parts
};

Replacement replace(const PageRange& range, const Placer& placer) {
  Replacement result;
  if (!range.bytes()) return result;
  const auto begin = std::chrono::steady_clock::now();
  try {
    uintptr_t reached = range.begin;
    for (const Mapping& mapping : mappings_in(range)) {
      if (mapping.pages.begin != reached) break;
      placer.place(mapping, &result);
      reached = mapping.pages.end;
    }
    if (reached != range.end) throw Refusal{"the range is not mapped as a whole, or /proc/self/maps cannot be read"};
  } catch (const Refusal& refusal) {
    result.error = refusal.what;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

uint32_t id_of(plan::Node node, const Topology& topology) {
  if (node >= topology.nodes.size()) throw std::invalid_argument("re-placing: there is no node " + std::to_string(node));
  return topology.nodes[node].id;
}

uintptr_t page_below(uintptr_t address) { return address / page_size() * page_size(); }

std::vector<Part> parts_of(uintptr_t begin, const PageRange& range, const std::vector<plan::NodeSlice>& slices, bool strict,
                           const Topology& topology) {
  std::vector<Part> parts;
  for (const plan::NodeSlice& slice : slices) {
    const uint32_t id = id_of(slice.node, topology);
    const PageRange pages = intersection(range, {page_below(begin + slice.begin), page_below(begin + slice.end)});
    if (pages.bytes()) parts.push_back({pages, strict ? Policy::kBind : Policy::kPreferred, {id}});
  }
  return parts;
}

void check(const std::vector<plan::NodeSlice>& slices, size_t bytes) {
  uint64_t reached = 0;
  for (const plan::NodeSlice& slice : slices) {
    if (slice.begin < reached || slice.end < slice.begin || slice.end > bytes)
      throw std::invalid_argument("re-placing: expected ascending slices of " + std::to_string(bytes) + " bytes, got one from " +
                                  std::to_string(slice.begin) + " to " + std::to_string(slice.end));
    reached = slice.end;
  }
}

}  // namespace

Replacement interleave(void* begin, size_t bytes, const std::vector<plan::Node>& nodes, const Topology& topology) {
  if (nodes.empty()) throw std::invalid_argument("re-placing: expected at least one node");
  std::vector<uint32_t> ids;
  for (plan::Node node : nodes) ids.push_back(id_of(node, topology));
  const PageRange range = pages_inside(begin, bytes);
  return replace(range, Placer({{range, Policy::kInterleave, ids}}, ids));
}

Replacement bind(void* begin, size_t bytes, const std::vector<plan::NodeSlice>& slices, bool strict, const Topology& topology) {
  check(slices, bytes);
  const PageRange range = pages_inside(begin, bytes);
  std::vector<Part> parts = parts_of(reinterpret_cast<uintptr_t>(begin), range, slices, strict, topology);
  if (parts.empty()) return {};
  std::vector<uint32_t> ids;
  for (const Part& part : parts) ids.push_back(part.nodes[0]);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const PageRange covered = {parts.front().pages.begin, parts.back().pages.end};
  return replace(covered, Placer(std::move(parts), ids));
}

}  // namespace ort_hina::runtime
