#include "operators/moe_nodes.h"

#include <algorithm>

namespace ort_hina::operators {
namespace {

// Half of it is less than a hundredth of a page of 4 KB.
constexpr size_t kMostCutBytes = 64;
// What a vector of the narrowest level takes.
constexpr size_t kLeastCutBytes = 16;
// The tokens of an item, as in plan/work.h.
constexpr size_t kMostTokens = 256;

struct Place {
  size_t window;
  plan::StoredMatrix stored;
};

// `outputs`: of the matrix, gate and up together where they are interleaved.
Place place_of(const Matrix& matrix, size_t outputs, size_t inputs, const std::vector<Window>& windows) {
  size_t w = 0;
  while (matrix.data < windows[w].data || matrix.data >= windows[w].data + windows[w].bytes) ++w;
  const bool by_outputs = matrix.layout == Layout::kNK;
  const size_t element = size_of(matrix.type);
  const auto u32 = [](size_t x) { return static_cast<uint32_t>(x); };
  return {w,
          {static_cast<uint64_t>(matrix.data - windows[w].data), u32(by_outputs ? outputs : inputs),
           u32(by_outputs ? inputs : outputs), u32(element), matrix.ld * element}};
}

// visit(matrix, outputs, inputs) of each matrix of an expert that is not missing: gate, up where it lies apart, down.
template <typename Visit>
void for_each_matrix(const MoeConfig& config, const Expert& expert, Visit visit) {
  const bool together = config.gated && expert.interleaved;
  visit(expert.gate, together ? 2 * config.intermediate : config.intermediate, config.hidden);
  if (config.gated && !together) visit(expert.up, config.intermediate, config.hidden);
  visit(expert.down, config.hidden, config.intermediate);
}

}  // namespace

std::vector<std::vector<plan::StoredMatrix>> stored_matrices(const MoeConfig& config, const std::vector<Window>& windows) {
  std::vector<std::vector<plan::StoredMatrix>> matrices(windows.size());
  for (const Expert& expert : config.experts)
    if (expert.gate.data)
      for_each_matrix(config, expert, [&](const Matrix& matrix, size_t outputs, size_t inputs) {
        const Place place = place_of(matrix, outputs, inputs, windows);
        matrices[place.window].push_back(place.stored);
      });
  return matrices;
}

uint32_t MoeNodes::ExpertPartition::gate_up_items() const {
  return static_cast<uint32_t>(gate->items().size() + (up ? up->items().size() : 0));
}

MoeNodes::MoeNodes(const MoeConfig& config, const std::vector<Window>& windows, const Placement& placement,
                   const KernelChoice& kernels)
    : hidden_(config.hidden), intermediate_(config.intermediate), element_(4), threads_(placement.threads),
      expected_(new std::atomic<uint32_t>[placement.threads->nodes]()) {
  plan::CutTiles known;
  for (const Expert& expert : config.experts) {
    experts_.emplace_back();
    if (!expert.gate.data) continue;
    std::vector<std::unique_ptr<plan::NodePartition>> parts;
    for_each_matrix(config, expert, [&](const Matrix& matrix, size_t outputs, size_t inputs) {
      parts.push_back(cut(matrix, outputs, inputs, windows, placement, kernels, &known));
    });
    if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return !part; })) continue;
    auto partition = std::make_unique<ExpertPartition>();
    partition->gate = std::move(parts.front());
    if (parts.size() == 3) partition->up = std::move(parts[1]);
    partition->down = std::move(parts.back());
    experts_.back() = std::move(partition);
    element_ = std::min({element_, size_of(expert.gate.type), size_of(expert.down.type)});
  }
  pool_.freeze();
}

std::unique_ptr<plan::NodePartition> MoeNodes::cut(const Matrix& matrix, size_t outputs, size_t inputs,
                                                   const std::vector<Window>& windows, const Placement& placement,
                                                   const KernelChoice& kernels, plan::CutTiles* known) {
  const Place place = place_of(matrix, outputs, inputs, windows);
  const plan::PageMap& map = placement.maps[place.window];
  if (map.runs().empty()) return nullptr;
  const bool by_outputs = matrix.layout == Layout::kNK;
  // Activations in blocks are best read by whole blocks. A cut beside a page's end leaves half a step on its wrong side.
  const bool blocks = kernels.activations(matrix.type) == DataType::kBF16;
  const size_t step = by_outputs && blocks ? kMostCutBytes : kLeastCutBytes;
  const plan::PartitionRule rule = {by_outputs ? plan::RowsAre::kOutputs : plan::RowsAre::kInputs,
                                    static_cast<uint32_t>(step / size_of(matrix.type)),
                                    plan::item_bytes(place.stored, placement.thread_count)};
  return std::make_unique<plan::NodePartition>(map, place.stored, rule, &pool_, known);
}

void MoeNodes::expect(const runtime::NodeClaims& claims) const {
  for (size_t n = 0; n < threads_->nodes; ++n)
    expected_[n].store(claims.arrived(static_cast<plan::Node>(n)), std::memory_order_relaxed);
}

bool MoeNodes::serves(const ExpertPartition& partition, size_t tokens) const {
  if (tokens <= plan::kPartitionTokens) return true;
  const auto few = [&](size_t parts, size_t inputs) { return parts * tokens * sizeof(float) * plan::kSumsShare <= inputs * element_; };
  return tokens <= kMostTokens && few(partition.gate_up_parts(), hidden_) && few(partition.down->parts(), intermediate_);
}

}  // namespace ort_hina::operators
