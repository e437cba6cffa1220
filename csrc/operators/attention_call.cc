#include "operators/attention_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "operators/attention_lengths.h"

namespace ort_hina::operators {
namespace {

using kernels::kAttentionKeys;
using kernels::padded_head;

constexpr float kInf = HUGE_VALF;

const uint8_t* at(const void* data, size_t element, DataType type) {
  return static_cast<const uint8_t*>(data) + element * size_of(type);
}
uint8_t* at(void* data, size_t element, DataType type) { return static_cast<uint8_t*>(data) + element * size_of(type); }

// f32 to the type of the tensors, rounded once.
void narrow(const kernels::VectorOps& ops, const float* from, size_t n, void* to, DataType type) {
  const kernels::CombineTerm term = {from, nullptr, 1.0f, 1, 0};
  ops.combine({&term, 1, n, to, type});
}

// The floats of `rows` rows of a state.
size_t state_floats(size_t rows, size_t value_size) { return rows * (padded_head(value_size) + 2); }

kernels::AttentionState empty_state(float* floats, size_t rows, size_t value_size) {
  const size_t ld = padded_head(value_size);
  std::fill(floats, floats + rows, -kInf);
  std::fill(floats + rows, floats + state_floats(rows, value_size), 0.0f);
  return {floats, floats + rows, floats + 2 * rows, ld};
}

}  // namespace

// What a thread needs beside the others.
struct AttentionCall::Scratch {
  Scratch(const AttentionCall& call, size_t rows)
      : rotation(call.in_.rotary, call.ops_),
        queries(rows * padded_head(call.in_.keys.size)),
        scores(rows * kAttentionKeys),
        state(state_floats(rows, call.in_.values.size)),
        token(std::max(call.in_.keys.size, call.in_.values.size)),
        visible(rows),
        bias(rows),
        parts(plan::kAttentionParts),
        terms(plan::kAttentionParts) {}

  Rotation rotation;
  std::vector<float> queries, scores, state, token;
  std::vector<kernels::KeyRange> visible;
  std::vector<const void*> bias;
  std::vector<kernels::AttentionState> parts;
  std::vector<kernels::CombineTerm> terms;
};

AttentionCall::~AttentionCall() = default;

AttentionCall::AttentionCall(const AttentionInputs& in, const AttentionRule& rule, const kernels::VectorOps& ops)
    : in_(in), rule_(rule), ops_(ops) {
  for (size_t b = 0; b < in.batch; ++b) problem_.batch.push_back(sequence_of(in, b));
  problem_.queries = in.queries;
  problem_.kv_heads = rule.kv_heads;
  problem_.group = rule.group();
  problem_.causal = rule.causal;
  problem_.window = rule.window;
  plan_ = plan::plan_attention(problem_);
  updated_.reset(new runtime::Event[in.batch * rule.kv_heads]());
  done_.reset(new std::atomic<uint32_t>[plan_.blocks]());
  size_t row = 0;
  for (const plan::AttentionUnit& unit : plan_.units) {
    partial_begin_.push_back(row);
    if (unit.parts > 1) row += unit.queries * problem_.group;
  }
  partials_.resize(state_floats(plan_.partial_rows, in.values.size));
  if (in.sink) {
    sinks_.resize(rule.heads);
    ops.widen(in.sink, in.sink_type, rule.heads, 1.0f, sinks_.data());
  } else if (rule.smooth) {
    sinks_.assign(rule.heads, 0.0f);
  }
}

void AttentionCall::run(const runtime::Pool& pool) {
  const size_t items = in_.batch * rule_.kv_heads + plan_.units.size();
  if (items == 0) return;
  const size_t threads = std::max<size_t>(1, std::min(pool.threads, items));
  for (size_t i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<Scratch>(*this, plan_.most_rows));
  pool.parallel_for(
      pool.context, threads,
      [](void* data, size_t i) {
        AttentionCall* const call = static_cast<AttentionCall*>(data);
        call->work(*call->scratch_[i]);
      },
      this);
}

void AttentionCall::work(Scratch& scratch) {
  const size_t caches = in_.batch * rule_.kv_heads, items = caches + plan_.units.size();
  for (size_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items;) {
    if (item >= caches) {
      attend(plan_.units[item - caches], scratch);
    } else {
      update_caches(item / rule_.kv_heads, item % rule_.kv_heads, scratch);
      updated_[item].store(1, std::memory_order_release);
    }
  }
}

void AttentionCall::update_caches(size_t batch, size_t head, Scratch& scratch) const {
  append(in_.keys, in_.key, rule_.rotary, batch, head, scratch);
  append(in_.values, in_.value, false, batch, head, scratch);
}

void AttentionCall::append(const Cache& cache, const TokenRows& tokens, bool rotates, size_t batch, size_t head,
                           Scratch& scratch) const {
  const plan::Sequence& sequence = problem_.batch[batch];
  const size_t number = batch * rule_.kv_heads + head, row_bytes = cache.size * size_of(in_.type);
  uint8_t* const present = at(cache.present, number * cache.present_length * cache.size, in_.type);
  if (cache.past != cache.present) {
    const size_t kept = sequence.past, known = kept + sequence.rows;
    if (kept) memcpy(present, at(cache.past, number * cache.past_length * cache.size, in_.type), kept * row_bytes);
    memset(present + known * row_bytes, 0, (cache.present_length - known) * row_bytes);
  }
  for (size_t s = 0; s < sequence.rows; ++s) {
    const uint8_t* const from = at(tokens.data, (batch * in_.queries + s) * tokens.stride + head * cache.size, in_.type);
    uint8_t* const to = present + (sequence.past + s) * row_bytes;
    if (!rotates) {
      memcpy(to, from, row_bytes);
      continue;
    }
    scratch.rotation.set(static_cast<size_t>(position_of(in_, batch, s)));
    ops_.widen(from, in_.type, cache.size, 1.0f, scratch.token.data());
    scratch.rotation.apply(scratch.token.data());
    narrow(ops_, scratch.token.data(), cache.size, to, in_.type);
  }
}

// Row q·group + g: head g of the group, of query q of the unit.
void AttentionCall::pack_queries(const plan::AttentionUnit& unit, Scratch& scratch) const {
  const size_t group = problem_.group, size = in_.keys.size, ld = padded_head(size);
  for (size_t q = 0; q < unit.queries; ++q) {
    const size_t token = unit.query + q;
    const bool rotates = rule_.rotary && token < problem_.batch[unit.batch].rows;
    if (rotates) scratch.rotation.set(static_cast<size_t>(position_of(in_, unit.batch, token)));
    for (size_t g = 0; g < group; ++g) {
      const size_t head = unit.head * group + g;
      float* const row = &scratch.queries[(q * group + g) * ld];
      ops_.widen(at(in_.query.data, (unit.batch * in_.queries + token) * in_.query.stride + head * size, in_.type), in_.type,
                 size, 1.0f, row);
      std::fill(row + size, row + ld, 0.0f);
      if (rotates) scratch.rotation.apply(row);
    }
  }
}

void AttentionCall::set_ranges(const plan::AttentionUnit& unit, Scratch& scratch) const {
  const size_t group = problem_.group;
  for (size_t q = 0; q < unit.queries; ++q) {
    const size_t query = unit.query + q;
    const kernels::KeyRange visible = plan::visible_keys(problem_, unit.batch, query);
    for (size_t g = 0; g < group; ++g) {
      scratch.visible[q * group + g] = visible;
      if (!in_.bias) continue;
      const size_t head = unit.head * group + g;
      const size_t plane = unit.batch * in_.bias_batch_stride + head * in_.bias_head_stride;
      scratch.bias[q * group + g] = at(in_.bias, plane + query * in_.total_length, in_.bias_type);
    }
  }
}

kernels::AttentionState AttentionCall::state_of(const plan::AttentionUnit& unit, Scratch& scratch) {
  const size_t rows = unit.queries * problem_.group;
  if (unit.parts == 1) return empty_state(scratch.state.data(), rows, in_.values.size);
  const size_t number = static_cast<size_t>(&unit - plan_.units.data());
  return empty_state(&partials_[state_floats(partial_begin_[number], in_.values.size)], rows, in_.values.size);
}

void AttentionCall::attend(const plan::AttentionUnit& unit, Scratch& scratch) {
  const size_t number = unit.batch * rule_.kv_heads + unit.head, length = in_.keys.present_length;
  pack_queries(unit, scratch);
  set_ranges(unit, scratch);
  const kernels::AttentionState state = state_of(unit, scratch);
  runtime::await(updated_[number], 1);
  kernels::AttendArgs args = {};
  args.queries = scratch.queries.data();
  args.rows = unit.queries * problem_.group;
  args.keys = at(static_cast<const void*>(in_.keys.present), number * length * in_.keys.size, in_.type);
  args.values = at(static_cast<const void*>(in_.values.present), number * length * in_.values.size, in_.type);
  args.type = in_.type;
  args.key_size = in_.keys.size;
  args.value_size = in_.values.size;
  args.range = unit.keys;
  args.visible = scratch.visible.data();
  args.bias = in_.bias ? scratch.bias.data() : nullptr;
  args.bias_type = in_.bias_type;
  args.scale = rule_.scale != 0.0f ? rule_.scale : 1.0f / std::sqrt(static_cast<float>(in_.keys.size));
  args.softcap = rule_.softcap;
  args.scores = scratch.scores.data();
  args.state = state;
  ops_.attend(args);
  if (unit.parts == 1) return finish(unit, &state, scratch);
  // The last to come sees what all others wrote.
  if (done_[unit.block].fetch_add(1, std::memory_order_acq_rel) + 1 < unit.parts) return;
  const size_t first = static_cast<size_t>(&unit - plan_.units.data()) - unit.part;
  for (size_t part = 0; part < unit.parts; ++part) {
    float* const floats = &partials_[state_floats(partial_begin_[first + part], in_.values.size)];
    scratch.parts[part] = {floats, floats + args.rows, floats + 2 * args.rows, state.ld};
  }
  finish(unit, scratch.parts.data(), scratch);
}

// Σ of the parts, each brought to the common maximum, over the sum of their weights and the sink's.
void AttentionCall::finish(const plan::AttentionUnit& unit, const kernels::AttentionState* parts, Scratch& scratch) const {
  const size_t group = problem_.group, size = in_.values.size;
  for (size_t row = 0; row < unit.queries * group; ++row) {
    const size_t head = unit.head * group + row % group, query = unit.query + row / group;
    const float sink = sink_of(head);
    float most = sink;
    for (size_t p = 0; p < unit.parts; ++p) most = std::max(most, parts[p].most[row]);
    const float shift = most == -kInf ? 0.0f : most;
    float sum = std::exp(sink - shift);
    for (size_t p = 0; p < unit.parts; ++p) sum += parts[p].sum[row] * std::exp(parts[p].most[row] - shift);
    for (size_t p = 0; p < unit.parts; ++p) {
      // Without any key the sum is 0, and so is the answer.
      const float weight = sum == 0.0f ? 0.0f : std::exp(parts[p].most[row] - shift) / sum;
      scratch.terms[p] = {parts[p].values + row * parts[p].ld, nullptr, weight, 1, 0};
    }
    const size_t place = ((unit.batch * in_.queries + query) * rule_.heads + head) * size;
    ops_.combine({scratch.terms.data(), unit.parts, size, at(in_.output, place, in_.type), in_.type});
  }
}

float AttentionCall::sink_of(size_t head) const { return sinks_.empty() ? -kInf : sinks_[head]; }

}  // namespace ort_hina::operators
