#include "operators/moe_nodes.h"

#include <algorithm>

namespace ort_hina::operators {
namespace {

// Partial sums are at most this share of the weights.
constexpr size_t kSumsShare = 8;
// Half of it is less than a hundredth of a page of 4 KB.
constexpr size_t kMostCutBytes = 64;
// The tokens of an item, as in plan/work.h.
constexpr size_t kMostTokens = 256;

}  // namespace

MatrixPlace place_of(const Matrix& matrix, size_t outputs, size_t inputs, const std::vector<Window>& windows,
                     const Placement& placement) {
  size_t w = 0;
  while (matrix.data < windows[w].data || matrix.data >= windows[w].data + windows[w].bytes) ++w;
  const bool by_outputs = matrix.layout == Layout::kNK;
  const size_t element = size_of(matrix.type);
  const auto u32 = [](size_t x) { return static_cast<uint32_t>(x); };
  return {&placement.maps[w],
          {static_cast<uint64_t>(matrix.data - windows[w].data), u32(by_outputs ? outputs : inputs),
           u32(by_outputs ? inputs : outputs), u32(element), matrix.ld * element}};
}

uint32_t MoeNodes::ExpertPartition::gate_up_items() const {
  return static_cast<uint32_t>(gate->items().size() + (up ? up->items().size() : 0));
}

MoeNodes::MoeNodes(const MoeConfig& config, const std::vector<Window>& windows, const Placement& placement,
                   const KernelChoice& kernels)
    : hidden_(config.hidden), intermediate_(config.intermediate), element_(4), threads_(placement.threads) {
  for (const Expert& expert : config.experts) {
    experts_.emplace_back();
    if (!expert.gate.data) continue;
    const bool two = config.gated && !expert.interleaved;
    auto partition = std::make_unique<ExpertPartition>();
    const size_t outputs = config.gated && expert.interleaved ? 2 * intermediate_ : intermediate_;
    partition->gate = cut(expert.gate, outputs, hidden_, windows, placement, kernels);
    if (two) partition->up = cut(expert.up, intermediate_, hidden_, windows, placement, kernels);
    partition->down = cut(expert.down, hidden_, intermediate_, windows, placement, kernels);
    element_ = std::min({element_, size_of(expert.gate.type), size_of(expert.down.type)});
    if (partition->gate && partition->down && (partition->up || !two)) experts_.back() = std::move(partition);
  }
}

std::unique_ptr<plan::NodePartition> MoeNodes::cut(const Matrix& matrix, size_t outputs, size_t inputs,
                                                   const std::vector<Window>& windows, const Placement& placement,
                                                   const KernelChoice& kernels) {
  const MatrixPlace place = place_of(matrix, outputs, inputs, windows, placement);
  if (place.map->runs().empty()) return nullptr;
  const bool by_outputs = matrix.layout == Layout::kNK;
  // Activations in blocks are best read by whole blocks. A cut beside a page's end leaves half a step on its wrong side.
  const bool blocks = kernels.activations(matrix.type) == DataType::kBF16;
  const plan::PartitionRule rule = {by_outputs ? plan::RowsAre::kOutputs : plan::RowsAre::kInputs,
                                    by_outputs && blocks ? static_cast<uint32_t>(kMostCutBytes / size_of(matrix.type)) : 8};
  return std::make_unique<plan::NodePartition>(*place.map, place.stored, rule, &pool_);
}

bool MoeNodes::serves(const ExpertPartition& partition, size_t tokens) const {
  const auto few = [&](size_t parts, size_t inputs) { return parts * tokens * sizeof(float) * kSumsShare <= inputs * element_; };
  return tokens <= kMostTokens && few(partition.gate_up_parts(), hidden_) && few(partition.down->parts(), intermediate_);
}

}  // namespace ort_hina::operators
