#include "operators/attention_call.h"

#include <algorithm>
#include <cmath>

#include "operators/attention_heads.h"
#include "operators/attention_lengths.h"
#include "operators/attention_mask.h"
#include "operators/elements.h"
#include "operators/tile_scope.h"

namespace ort_hina::operators {
namespace {

using kernels::padded_head;

constexpr float kInf = HUGE_VALF;

// The floats of `rows` rows of a state.
size_t state_floats(size_t rows, size_t value_size) { return rows * (padded_head(value_size) + 2); }

kernels::AttentionState empty_state(float* floats, size_t rows, size_t value_size) {
  const size_t ld = padded_head(value_size);
  std::fill(floats, floats + rows, -kInf);
  std::fill(floats + rows, floats + state_floats(rows, value_size), 0.0f);
  return {floats, floats + rows, floats + 2 * rows, ld};
}

runtime::NodeQueues& kept_queues() {
  thread_local runtime::NodeQueues queues;
  return queues;
}

// Runs of keys that a kernel is given at once.
constexpr size_t kRunsOfCall = 64;

// Caches are up to date before units attend.
enum Step : size_t { kUpdate, kAttend, kSteps };

}  // namespace

// What a thread needs beside the others.
struct AttentionCall::Scratch {
  Scratch(const AttentionCall& call, size_t rows)
      : query_heads(call.in_, call.in_.query, call.rule_.heads, call.query_norm_.get(), call.ops_),
        key_heads(call.in_, call.in_.key, call.rule_.kv_heads, call.key_norm_.get(), call.ops_),
        queries(rows * padded_head(call.in_.keys.size)),
        attend(new float[kernels::attend_scratch(rows, call.in_.keys.size)]),
        state(state_floats(rows, call.in_.values.size)),
        head(call.in_.keys.size),
        visible(rows),
        bias(rows),
        parts(call.plan_.most_parts),
        terms(call.plan_.most_parts),
        runs(kRunsOfCall) {}

  TokenHeads query_heads, key_heads;
  std::vector<float> queries;
  std::unique_ptr<float[]> attend;  // not set to 0, which would take longer than a short sequence
  std::vector<float> state, head;
  std::vector<kernels::KeyRange> visible;
  std::vector<const void*> bias;
  std::vector<kernels::AttentionState> parts;
  std::vector<kernels::CombineTerm> terms;
  std::vector<kernels::KeyRange> runs;
};

AttentionCall::~AttentionCall() = default;

AttentionCall::AttentionCall(const AttentionInputs& in, const AttentionRule& rule, const kernels::VectorOps& ops,
                             const KeyPlacement* placement)
    : in_(in), rule_(rule), ops_(ops), placement_(placement), queues_(kept_queues()) {
  read_sequences();
  problem_.queries = in.queries;
  problem_.kv_heads = rule.kv_heads;
  problem_.group = rule.group();
  problem_.causal = rule.causal;
  problem_.window = rule.window;
  plan_ = plan::plan_attention(problem_, placement ? placement->heads : nullptr);
  old_apart_ = plan_.blocks == in.batch * rule.kv_heads;
  cache_ = std::make_unique<CacheUpdate>(in, rule.kv_heads, problem_.batch, old_apart_ ? &plan_.units : nullptr, ops);
  updated_.reset(new runtime::Event[in.batch]());
  done_.reset(new std::atomic<uint32_t>[plan_.blocks]());
  size_t row = 0;
  for (const plan::AttentionUnit& unit : plan_.units) {
    partial_begin_.push_back(row);
    if (unit.parts > 1) row += unit.queries * problem_.group;
  }
  query_norm_ = norm_of(in.query_norm, rule.heads, rule.query_epsilon);
  key_norm_ = norm_of(in.key_norm, rule.kv_heads, rule.key_epsilon);
  partials_.resize(state_floats(plan_.partial_rows, in.values.size));
  if (in.sink) {
    sinks_.resize(rule.heads);
    ops.widen(in.sink, in.sink_type, rule.heads, 1.0f, sinks_.data());
  } else if (rule.smooth) {
    sinks_.assign(rule.heads, 0.0f);
  }
}

void AttentionCall::read_sequences() {
  const uint8_t* const mask = static_cast<const uint8_t*>(in_.mask);
  for (size_t b = 0; b < in_.batch; ++b) {
    plan::Sequence sequence = sequence_of(in_, b);
    const size_t keys = sequence.past + sequence.rows;
    if (mask) runs_.push_back(runs_of_nonzero(mask + b * in_.total_length * in_.mask_bytes, in_.mask_bytes, keys));
    else runs_.push_back({{0, keys}});
    const std::vector<kernels::KeyRange>& runs = runs_.back();
    sequence.seen = runs.empty() ? kernels::KeyRange{0, 0} : kernels::KeyRange{runs.front().begin, runs.back().end};
    problem_.batch.push_back(sequence);
  }
}

std::unique_ptr<RmsNorm> AttentionCall::norm_of(const HeadNorm& norm, size_t heads, float epsilon) const {
  if (!norm.weight) return nullptr;
  const size_t size = norm.of_token ? heads * in_.keys.size : in_.keys.size;
  return std::make_unique<RmsNorm>(norm.weight, norm.type, size, epsilon, ops_);
}

void AttentionCall::run(const runtime::Pool& pool) {
  const size_t items = cache_->items().size() + plan_.units.size();
  if (items == 0) return;
  const size_t threads = std::max<size_t>(1, std::min(pool.threads, items));
  for (size_t i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<Scratch>(*this, plan_.most_rows));
  if (placement_) queue_items();
  pool.parallel_for(
      pool.context, threads, [](void* call, size_t i) { static_cast<AttentionCall*>(call)->participate(i); }, this);
}

void AttentionCall::queue_items() {
  queues_.begin(kSteps, placement_->threads->nodes);
  for (uint32_t i = 0; i < cache_->items().size(); ++i) queues_.add(kUpdate, plan::kUnknownNode, i);
  queue_units();
  claims_ = std::make_unique<runtime::NodeClaims>(queues_, *placement_->threads, runtime::Limit::kMemory);
}

// Those of a node in shares as claim() makes them.
void AttentionCall::queue_units() {
  const size_t nodes = queues_.nodes();
  std::vector<std::vector<uint32_t>> of_queue(nodes + 1);
  for (uint32_t i = 0; i < plan_.units.size(); ++i) of_queue[queues_.queue_of(plan_.units[i].node)].push_back(i);
  for (size_t queue = 0; queue <= nodes; ++queue) {
    const size_t threads = queue < nodes ? std::max<size_t>(1, scratch_.size() / nodes) : scratch_.size();
    for (size_t left = of_queue[queue].size(), begin = unit_order_.size(), share; left; left -= share, begin += share) {
      share = share_of(left, threads);
      queues_.add(kAttend, queue < nodes ? static_cast<plan::Node>(queue) : plan::kUnknownNode,
                  static_cast<uint32_t>(shares_.size()));
      shares_.push_back({begin, begin + share});
    }
    unit_order_.insert(unit_order_.end(), of_queue[queue].begin(), of_queue[queue].end());
  }
}

void AttentionCall::participate(size_t participant) {
  const TileScope tiles(ops_.isa);
  Scratch& scratch = *scratch_[participant];
  if (claims_) work_by_nodes(placement_->threads->current(participant), scratch);
  else work_in_order(scratch);
}

void AttentionCall::work_by_nodes(plan::Node node, Scratch& scratch) {
  claims_->arrive(node);
  for (uint32_t item; (item = claims_->claim(kUpdate, node)) != runtime::kNoItem;) update_caches(item, scratch);
  for (uint32_t share; (share = claims_->claim(kAttend, node)) != runtime::kNoItem;)
    for (size_t i = shares_[share].begin; i < shares_[share].end; ++i) {
      const bool last = i + 1 == shares_[share].end;
      attend(plan_.units[unit_order_[i]], last ? nullptr : &plan_.units[unit_order_[i + 1]], scratch);
    }
}

void AttentionCall::update_caches(size_t item, Scratch& scratch) {
  const CacheItem& update = cache_->items()[item];
  cache_->run(update, scratch.key_heads, scratch.head.data());
  if (update.awaited) updated_[update.batch].fetch_add(1, std::memory_order_release);
}

// Cache items one by one. Units in runs, since what the next one reads is fetched while the present one ends; the runs get
// shorter, so that threads end together.
size_t AttentionCall::share_of(size_t items, size_t threads) const {
  constexpr size_t kClaimsOfThread = 4;
  return std::max<size_t>(1, items / (kClaimsOfThread * threads));
}

AttentionCall::Claim AttentionCall::claim() {
  const size_t caches = cache_->items().size(), items = caches + plan_.units.size();
  size_t begin = next_.load(std::memory_order_relaxed), end;
  do {
    if (begin >= items) return {items, items};
    end = begin + (begin < caches ? 1 : share_of(items - begin, scratch_.size()));
  } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  return {begin, end};
}

void AttentionCall::work_in_order(Scratch& scratch) {
  const size_t caches = cache_->items().size();
  for (Claim own = claim(); own.begin < own.end; own = claim()) {
    if (own.begin < caches) {
      update_caches(own.begin, scratch);
      continue;
    }
    const plan::AttentionUnit* const units = plan_.units.data() - caches;
    for (size_t item = own.begin; item < own.end; ++item)
      attend(units[item], item + 1 < own.end ? &units[item + 1] : nullptr, scratch);
  }
}

// Row q·group + g: head g of the group, of query q of the unit.
void AttentionCall::pack_queries(const plan::AttentionUnit& unit, Scratch& scratch) const {
  const size_t group = problem_.group, size = in_.keys.size, ld = padded_head(size);
  for (size_t q = 0; q < unit.queries; ++q) {
    const size_t token = unit.query + q;
    float* const rows = &scratch.queries[q * group * ld];
    if (token >= problem_.batch[unit.batch].rows) {
      std::fill(rows, rows + group * ld, 0.0f);
      continue;
    }
    scratch.query_heads.set(unit.batch, token);
    for (size_t g = 0; g < group; ++g) {
      float* const row = rows + g * ld;
      scratch.query_heads.load(unit.head * group + g, row);
      std::fill(row + size, row + ld, 0.0f);
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
      scratch.bias[q * group + g] = element_at(in_.bias, plane + query * in_.total_length, in_.bias_type);
    }
  }
}

kernels::AttentionState AttentionCall::state_of(const plan::AttentionUnit& unit, Scratch& scratch) {
  const size_t rows = unit.queries * problem_.group;
  if (unit.parts == 1) return empty_state(scratch.state.data(), rows, in_.values.size);
  const size_t number = static_cast<size_t>(&unit - plan_.units.data());
  return empty_state(&partials_[state_floats(partial_begin_[number], in_.values.size)], rows, in_.values.size);
}

// Of one head's keys and values, where old rows are read, and where new ones are.
struct AttentionCall::HeadCaches {
  const uint8_t *old_keys, *old_values, *keys, *values;
};

AttentionCall::HeadCaches AttentionCall::caches_of(const plan::AttentionUnit& unit) const {
  const size_t number = unit.batch * rule_.kv_heads + unit.head;
  const auto head_of = [&](const void* cache, size_t length, size_t size) {
    return element_at(cache, number * length * size, in_.type);
  };
  const auto present = [&](const Cache& cache) { return head_of(cache.present, cache.present_length, cache.size); };
  const auto old = [&](const Cache& cache) {
    return cache_->by_units() && cache.past ? head_of(cache.past, cache.past_length, cache.size) : present(cache);
  };
  return {old(in_.keys), old(in_.values), present(in_.keys), present(in_.values)};
}

// What the unit's queries see of its keys, added to the state.
void AttentionCall::sum_keys(const plan::AttentionUnit& unit, const plan::AttentionUnit* next,
                             const kernels::AttentionState& state, Scratch& scratch) const {
  pack_queries(unit, scratch);
  set_ranges(unit, scratch);
  runtime::await(updated_[unit.batch], cache_->items_of(unit.batch));
  kernels::AttendArgs args = {};
  args.queries = scratch.queries.data();
  args.rows = unit.queries * problem_.group;
  args.type = in_.type;
  args.key_size = in_.keys.size;
  args.value_size = in_.values.size;
  args.visible = scratch.visible.data();
  args.bias = in_.bias ? scratch.bias.data() : nullptr;
  args.bias_type = in_.bias_type;
  args.scale = rule_.scale != 0.0f ? rule_.scale : 1.0f / std::sqrt(static_cast<float>(in_.keys.size));
  args.softcap = rule_.softcap;
  args.scratch = scratch.attend.get();
  args.state = state;
  if (unit.node != plan::kUnknownNode) return sum_keys_of_node(unit, next, args, scratch);
  if (next) fetch_next(*next, &args);
  const HeadCaches caches = caches_of(unit);
  const auto sum_range = [&](size_t begin, size_t end, const uint8_t* keys, const uint8_t* values) {
    if (begin >= end) return;
    args.keys = keys;
    args.values = values;
    args.range = {begin, end};
    ops_.attend(args);
  };
  const size_t old = old_apart_ ? problem_.batch[unit.batch].past : 0;
  // Keys that the mask hides are not read at all: what lies there may be anything.
  for_each_run_in(runs_[unit.batch], unit.keys, [&](const kernels::KeyRange& keys) {
    sum_range(keys.begin, std::min(keys.end, old), caches.old_keys, caches.old_values);
    sum_range(std::max(keys.begin, old), keys.end, caches.keys, caches.values);
  });
}

const plan::KeyNodes::Keys& AttentionCall::keys_of_node(const plan::AttentionUnit& unit) const {
  return (*placement_->heads)[unit.batch * rule_.kv_heads + unit.head].nodes()[unit.node];
}

// What the thread reads after these.
void AttentionCall::fetch_next(const plan::AttentionUnit& next, kernels::AttendArgs* args) const {
  const bool all = next.node == plan::kUnknownNode;
  const kernels::KeyRange first = all ? next.keys : keys_of_node(next).run_from(next.keys.begin);
  args->next_keys = caches_of(next).old_keys + first.begin * in_.keys.size * size_of(in_.type);
  args->next_count = std::min(first.end, next.keys.end) - first.begin;
}

// The caches are in place. Runs may be as short as a page, so the kernel gets many at once.
void AttentionCall::sum_keys_of_node(const plan::AttentionUnit& unit, const plan::AttentionUnit* next, kernels::AttendArgs args,
                                     Scratch& scratch) const {
  const HeadCaches caches = caches_of(unit);
  args.keys = caches.keys;
  args.values = caches.values;
  args.runs = scratch.runs.data();
  const auto sum = [&] {
    if (!args.run_count) return;
    args.range = {scratch.runs[0].begin, scratch.runs[args.run_count - 1].end};
    ops_.attend(args);
    args.run_count = 0;
  };
  for_each_run_in(keys_of_node(unit).runs, unit.keys, [&](const kernels::KeyRange& on_node) {
    for_each_run_in(runs_[unit.batch], on_node, [&](const kernels::KeyRange& keys) {
      if (args.run_count == kRunsOfCall) {
        args.next_keys = caches.keys + keys.begin * in_.keys.size * size_of(in_.type);
        args.next_count = keys.end - keys.begin;
        sum();
      }
      scratch.runs[args.run_count++] = keys;
    });
  });
  args.next_keys = nullptr;
  if (next) fetch_next(*next, &args);
  sum();
}

void AttentionCall::attend(const plan::AttentionUnit& unit, const plan::AttentionUnit* next, Scratch& scratch) {
  const size_t rows = unit.queries * problem_.group;
  const kernels::AttentionState state = state_of(unit, scratch);
  if (unit.keys.begin < unit.keys.end) sum_keys(unit, next, state, scratch);
  if (cache_->by_units()) cache_->carry_over(unit);
  if (unit.parts == 1) return finish(unit, &state, scratch);
  // The last to come sees what all others wrote.
  if (done_[unit.block].fetch_add(1, std::memory_order_acq_rel) + 1 < unit.parts) return;
  const size_t first = static_cast<size_t>(&unit - plan_.units.data()) - unit.part;
  for (size_t part = 0; part < unit.parts; ++part) {
    float* const floats = &partials_[state_floats(partial_begin_[first + part], in_.values.size)];
    scratch.parts[part] = {floats, floats + rows, floats + 2 * rows, state.ld};
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
    ops_.combine({scratch.terms.data(), unit.parts, size, element_at(in_.output, place, in_.type), in_.type});
  }
}

float AttentionCall::sink_of(size_t head) const { return sinks_.empty() ? -kInf : sinks_[head]; }

}  // namespace ort_hina::operators
