// Memory nodes: slices by rows, and the kernel's answers about memory of this process before and after it was re-placed.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "plan/row_slices.h"
#include "runtime/memory_policy.h"
#include "runtime/placement.h"
#include "runtime/replacement.h"
#include "tests.h"

namespace ort_hina::native_tests {
namespace {

using plan::Node;
using plan::NodeSlice;

std::vector<plan::StoredMatrix> random_matrices(Random& random, uint64_t* bytes) {
  std::vector<plan::StoredMatrix> matrices;
  *bytes = random.between(0, 300);
  for (size_t left = random.between(0, 5); left; --left) {
    plan::StoredMatrix m = {*bytes, static_cast<uint32_t>(random.between(1, 60)), static_cast<uint32_t>(random.between(1, 3000)),
                            random.one_in(2) ? 2u : 4u, 0};
    m.row_stride = m.row_bytes() + (random.one_in(2) ? 0 : random.between(1, 5000));
    matrices.push_back(m);
    *bytes = m.row_begin(m.rows - 1) + m.row_bytes() + random.between(0, 9000);
  }
  return matrices;
}

void check_slices(Random& random, Outcome& outcome) {
  for (int i = 0; i < 200; ++i) {
    uint64_t bytes = 0;
    const std::vector<plan::StoredMatrix> matrices = random_matrices(random, &bytes);
    std::vector<double> weights(random.between(1, 16));
    for (double& w : weights) w = static_cast<double>(random.between(0, 9));
    weights.back() += 1;
    const plan::PageGrid grid = {4096, random.between(0, 4095)};
    uint64_t reached = 0;
    for (const NodeSlice& s : plan::row_slices(matrices, bytes, weights, grid)) {
      outcome.require(s.begin == reached && s.end > s.begin, "slices leave a gap");
      outcome.require(s.begin == 0 || (grid.phase + s.begin) % grid.page == 0, "a slice begins within a page");
      outcome.require(s.node < weights.size() && weights[s.node] > 0, "a slice of a node without threads");
      reached = s.end;
    }
    outcome.require(reached == bytes, "slices do not end with the range");
    ++outcome.cases;
  }
}

// A private mapping of a file in memory, or anonymous memory.
class Memory {
 public:
  Memory(size_t bytes, bool file) : bytes_(bytes) {
    const int descriptor = file ? memfd_create("weights", 0) : -1;
    if (file && ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | (file ? 0 : MAP_ANONYMOUS), descriptor, 0);
    if (descriptor >= 0) close(descriptor);
    if (at != MAP_FAILED) data_ = static_cast<uint8_t*>(at);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (data_) munmap(data_, bytes_);
  }
  uint8_t* data() const { return data_; }

 private:
  const size_t bytes_;
  uint8_t* data_ = nullptr;
};

void check_map(const uint8_t* begin, size_t bytes, const runtime::Topology& topology, Outcome& outcome) {
  const plan::PageMap map = runtime::query_placement(begin, bytes, topology);
  outcome.require(map.bytes() == bytes, "a map of another length");
  for (const plan::PageMap::Run& run : map.runs())
    outcome.require(run.node == plan::kUnknownNode || run.node < topology.nodes.size(), "a node that is not there");
}

std::vector<NodeSlice> random_slices(Random& random, size_t bytes, size_t nodes) {
  std::vector<NodeSlice> slices;
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t end = std::min<uint64_t>(bytes, at + random.between(1, 5 * runtime::page_size()));
    slices.push_back({at, end, static_cast<Node>(random.between(0, nodes - 1))});
    at = end;
  }
  return slices;
}

// Where the kernel refuses, nothing must have changed, either.
void check_replacing(Random& random, Outcome& outcome) {
  const runtime::Topology& topology = runtime::topology();
  std::vector<Node> all;
  for (size_t n = 0; n < topology.nodes.size(); ++n) all.push_back(static_cast<Node>(n));
  for (int i = 0; i < 30; ++i) {
    const size_t bytes = random.between(1, 700) * runtime::page_size() - random.between(0, 100);
    const Memory memory(bytes, random.one_in(2));
    if (!memory.data()) return outcome.fail("no memory");
    std::vector<uint8_t> before(bytes);
    for (uint8_t& byte : before) byte = static_cast<uint8_t>(random.between(0, 255));
    std::memcpy(memory.data(), before.data(), bytes);
    const size_t skip = random.between(0, bytes - 1), size = bytes - skip;
    uint8_t* const begin = memory.data() + skip;
    check_map(begin, size, topology, outcome);
    if (random.one_in(2)) runtime::interleave(begin, size, all, topology);
    else runtime::bind(begin, size, random_slices(random, size, all.size()), random.one_in(2), topology);
    check_map(begin, size, topology, outcome);
    outcome.require(std::memcmp(memory.data(), before.data(), bytes) == 0, "other bytes after re-placing");
    ++outcome.cases;
  }
}

void check_current_node(Random&, Outcome& outcome) {
  const Node node = runtime::current_node();
  outcome.require(node == plan::kUnknownNode || node < runtime::topology().nodes.size(), "this thread runs on no node");
  ++outcome.cases;
}

}  // namespace

void add_numa_tests(Tests& tests) {
  tests.push_back({"-", "memory nodes: slices by rows", check_slices});
  tests.push_back({"-", "memory nodes: re-placing", check_replacing});
  tests.push_back({"-", "memory nodes: of this thread", check_current_node});
}

}  // namespace ort_hina::native_tests
