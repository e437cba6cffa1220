#include "operators/moe.h"

#include <algorithm>
#include <stdexcept>

#include "operators/moe_call.h"

namespace ort_hina::operators {
namespace {

// Tokens beyond this much workspace are done in a further round, which reads the weights again: so the limit grows with the
// weights, of which it stays a small part.
constexpr size_t kWorkspaceBytes = size_t{256} << 20;
constexpr size_t kWeightsShare = 16;

size_t weight_bytes(const MoeConfig& config) {
  size_t bytes = 0;
  for (const Expert& expert : config.experts)
    if (expert.gate.data) bytes += (config.gated ? 2 : 1) * size_of(expert.gate.type) + size_of(expert.down.type);
  return bytes * config.hidden * config.intermediate;
}

size_t tokens_in_a_round(const MoeConfig& config, size_t k) {
  const size_t limit = std::max(kWorkspaceBytes, weight_bytes(config) / kWeightsShare);
  // A slot's gathered token, which its answer replaces, and its hidden units.
  const size_t slot_bytes = 4 * (config.hidden + config.intermediate);
  return std::max<size_t>(1, limit / (slot_bytes * k));
}

// Null stays null: an input that is absent.
const void* advance(const void* p, size_t bytes) { return p ? static_cast<const uint8_t*>(p) + bytes : nullptr; }

MoeInputs round_of(const MoeInputs& all, size_t hidden, size_t token, size_t tokens) {
  MoeInputs in = all;
  const size_t row = token * hidden * size_of(all.x_type);
  in.x = advance(all.x, row);
  in.y = static_cast<uint8_t*>(all.y) + row;
  in.ids = advance(all.ids, token * all.k * (all.ids_are_64_bit ? 8 : 4));
  in.weights = advance(all.weights, token * all.k * size_of(all.weights_type));
  in.addend = advance(all.addend, row);
  in.tokens = tokens;
  return in;
}

}  // namespace

void Moe::run(const MoeInputs& in, const runtime::Pool& pool, const Workspace& workspace) const {
  if (in.tokens == 0) return;
  if (in.k == 0) throw std::invalid_argument("expert_ids has no choices (k = 0)");

  const size_t most = tokens_in_a_round(config_, in.k);
  const size_t rounds = (in.tokens + most - 1) / most;
  const size_t tokens = (in.tokens + rounds - 1) / rounds;
  for (size_t t = 0; t < in.tokens; t += tokens) {
    MoeCall call(config_, kernels_, gates_, nodes_.get(), round_of(in, config_.hidden, t, std::min(tokens, in.tokens - t)), pool);
    call.run(workspace);
  }
}

}  // namespace ort_hina::operators
