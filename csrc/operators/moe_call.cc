#include "operators/moe_call.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "operators/moe_scratch.h"
#include "operators/tile_scope.h"

namespace ort_hina::operators {
namespace {

using kernels::kBlockTokens;
using kernels::MatmulKernel;
using plan::Step;
using plan::WorkItem;

// With so few tokens memory is the limit, and [K,N] weights are read in runs as long as an item is wide.
constexpr size_t kFewRows = 32;
// Slots that one thread sorts in the time that it takes to wake another.
constexpr size_t kChunkSlots = 1024;
constexpr size_t kMaxRoutingChunks = 16;

plan::MatmulForm form_of(const MatmulKernel& kernel, size_t rows) {
  plan::MatmulForm form;
  form.cut_k = kernel.cut == kernels::Cut::kK;
  form.n_step = kernel.n_step;
  form.k_chunk = kernel.k_chunk;
  form.row_step = kernel.activations == DataType::kBF16 ? kBlockTokens : 1;
  form.n_most = kernel.n_most;
  form.wide = kernel.layout == Layout::kKN && rows <= kFewRows;
  return form;
}

template <typename T>
T& kept_by_thread() {
  thread_local T value;
  return value;
}

}  // namespace

MoeCall::MoeCall(const MoeConfig& config, const KernelChoice& kernels, const SigmoidGates& gates, const MoeNodes* nodes,
                 const MoeInputs& inputs, const runtime::Pool& pool)
    : config_(config),
      kernels_(kernels),
      gates_(gates),
      nodes_(nodes),
      in_(inputs),
      pool_(pool),
      ops_(kernels::vector_ops(kernels.level())),
      slots_(inputs.tokens * inputs.k),
      chunks_(std::min({std::max<size_t>(1, slots_ / kChunkSlots), kMaxRoutingChunks, pool.threads})),
      routing_(kept_by_thread<plan::Routing>()),
      work_(kept_by_thread<plan::WorkPlan>()),
      loads_(kept_by_thread<std::vector<plan::ExpertLoad>>()),
      active_(kept_by_thread<std::vector<ActiveCall>>()),
      queues_(kept_by_thread<runtime::NodeQueues>()) {}

// ---- Routing

template <typename Visit>
auto MoeCall::with_ids(Visit visit) const {
  if (!in_.ids) return visit(plan::EveryExpert{config_.num_experts});
  if (in_.ids_are_64_bit) return visit(static_cast<const int64_t*>(in_.ids));
  return visit(static_cast<const int32_t*>(in_.ids));
}

void MoeCall::count(size_t chunk) {
  const size_t bad = with_ids([&](auto ids) { return routing_.count(ids, chunk); });
  if (bad < slots_) bad_id_ = true;
}

void MoeCall::place(size_t chunk) {
  with_ids([&](auto ids) { routing_.place(ids, chunk); });
}

// Only once something is known to be wrong: finds it and says what.
void MoeCall::check_ids() const {
  for (size_t s = 0; s < slots_; ++s) {
    const int64_t id = with_ids([s](auto ids) { return static_cast<int64_t>(ids[s]); });
    if (!in_.ids && !config_.experts[static_cast<size_t>(id)].gate.data)
      throw std::invalid_argument("expert_ids is absent, so every token goes to expert " + std::to_string(id) +
                                  ", but this model holds no weights of that expert");
    const std::string place = "expert_ids[" + std::to_string(s / in_.k) + ", " + std::to_string(s % in_.k) + "] is " +
                              std::to_string(id);
    if (id < 0 || static_cast<uint64_t>(id) >= config_.num_experts)
      throw std::invalid_argument(place + ", expected an id in [0, " + std::to_string(config_.num_experts) + ")");
    if (!bad_id_ && !config_.experts[static_cast<size_t>(id)].gate.data)
      throw std::invalid_argument(place + ", but this model holds no weights of that expert");
  }
}

// ---- Plan

void MoeCall::prepare() {
  if (bad_id_) check_ids();
  routing_.arrange(config_.left_out);
  for (const plan::ActiveExpert& active : routing_.active)
    if (!config_.experts[active.id].gate.data) check_ids();
  plan();
  const size_t bytes = lay_out();
  const size_t event_bytes = align(work_.events() * sizeof(runtime::Event));
  uint8_t* memory = static_cast<uint8_t*>((*workspace_)(event_bytes + bytes));
  events_ = reinterpret_cast<runtime::Event*>(memory);
  for (uint32_t i = 0; i < work_.events(); ++i) new (&events_[i]) runtime::Event(0);
  base_ = memory + event_bytes;
}

ActiveCall MoeCall::plan_expert(const plan::ActiveExpert& active) const {
  const Expert& expert = config_.experts[active.id];
  ActiveCall call = {};
  call.expert = &expert;
  call.gate_up = &kernels_.pick(expert.gate.type, expert.gate.layout, active.count, gate_up_outputs(), config_.hidden);
  call.down = &kernels_.pick(expert.down.type, expert.down.layout, active.count, config_.hidden, config_.intermediate);
  call.tokens = activations_of(*call.gate_up, config_.hidden);
  call.hidden = activations_of(*call.down, config_.intermediate);
  call.lanes = call.gate_up->lanes_result && same_form(call.tokens, call.hidden);
  const MoeNodes::ExpertPartition* const nodes = nodes_ ? nodes_->of(active.id) : nullptr;
  if (nodes && nodes_->serves(*nodes, active.count)) call.nodes = nodes;
  return call;
}

plan::ExpertLoad MoeCall::load_of(const plan::ActiveExpert& active, ActiveCall* call) const {
  plan::ExpertLoad load = {active.begin, active.count, form_of(*call->gate_up, active.count), form_of(*call->down, active.count)};
  // Hidden units go straight into down's blocks, so an item of gate and up has whole ones, whatever its own kernel wants.
  load.gate_up.row_step = std::max(load.gate_up.row_step, load.down.row_step);
  if (call->nodes) {
    load.gate_up_items = call->nodes->gate_up_items();
    load.down_items = static_cast<uint32_t>(call->nodes->down->items().size());
    call->gate_up_chunks = call->nodes->gate_up_parts();
    call->down_chunks = call->nodes->down->parts();
  } else {
    call->gate_up_chunks = plan::chunk_count(load.gate_up, load.rows, config_.hidden);
    call->down_chunks = plan::chunk_count(load.down, load.rows, config_.intermediate);
  }
  return load;
}

void MoeCall::plan() {
  const auto once = [](const plan::ActiveExpert& active) { return active.count == 1; };
  one_token_ = in_.tokens == 1 && !config_.weight_on_input &&
               std::all_of(routing_.active.begin(), routing_.active.end(), once);
  loads_.clear();
  active_.clear();
  for (const plan::ActiveExpert& active : routing_.active) {
    ActiveCall call = plan_expert(active);
    loads_.push_back(load_of(active, &call));
    active_.push_back(call);
  }
  work_.build({&loads_, in_.tokens, config_.hidden, config_.intermediate, !one_token_, pool_.threads});
  if (nodes_) queue_items();
}

void MoeCall::queue_items() {
  queues_.begin(plan::kSteps, nodes_->threads().nodes);
  for (size_t s = 0; s < plan::kSteps; ++s) {
    const Step step = static_cast<Step>(s);
    for (size_t e = 0; e < (step == Step::kCombine ? 1 : active_.size()); ++e) {
      const size_t first = work_.first_item(step, e);
      for (uint32_t i = 0; i < work_.items(step, e); ++i)
        queues_.add(s, node_of(step, e, i), static_cast<uint32_t>(first + i));
    }
  }
  const bool few = std::all_of(active_.begin(), active_.end(), [](const ActiveCall& call) { return call.nodes; });
  claims_ = std::make_unique<runtime::NodeClaims>(
      queues_, nodes_->threads(), few ? runtime::Limit::kMemory : runtime::Limit::kArithmetic, nodes_->expected());
}

// Where the weights of an item lie, for the most part.
plan::Node MoeCall::node_of(Step step, size_t expert, uint32_t number) const {
  if (step != Step::kGateUp && step != Step::kDown) return plan::kUnknownNode;
  if (const MoeNodes::ExpertPartition* nodes = active_[expert].nodes) {
    const plan::NodePartition* partition = step == Step::kDown ? nodes->down.get() : nodes->gate.get();
    const size_t of_first = partition->items().size();
    if (number >= of_first) return nodes->up->items()[number - of_first].node;
    return partition->items()[number].node;
  }
  const MoeNodes::ExpertPartition* nodes = nodes_->of(routing_.active[expert].id);
  if (!nodes) return plan::kUnknownNode;
  const plan::NodePartition& partition = step == Step::kDown ? *nodes->down : *nodes->gate;
  const WorkItem item = work_.item(work_.first_item(step, expert) + number);
  const MatmulKernel& kernel = step == Step::kDown ? *active_[expert].down : *active_[expert].gate_up;
  const uint32_t middle = item.begin + item.count / 2;
  const bool along_rows = partition.rows_are_inputs() == (kernel.cut == kernels::Cut::kK);
  return along_rows ? partition.node_at(middle, 0) : partition.node_at(0, middle);
}

// An expert's answers take the place of its gathered tokens: it has answered for none before it has read all.
size_t MoeCall::lay_out() {
  size_t next = 0;
  const auto take = [&next](size_t bytes) {
    const size_t at = next;
    next += align(bytes);
    return at;
  };
  for (size_t e = 0; e < active_.size(); ++e) {
    ActiveCall& call = active_[e];
    const plan::ExpertLoad& load = loads_[e];
    const bool shares = one_token_ && e > 0 && same_form(call.tokens, active_[0].tokens);
    const bool in_place = !one_token_ && !load.down.cut_k && !load.down_items;
    call.answer_stride = padded_row(config_.hidden, sizeof(float));
    const size_t answer_bytes = call.down_chunks * load.rows * call.answer_stride * sizeof(float);
    if (shares) {
      call.tokens.at = active_[0].tokens.at;
    } else {
      const size_t token_bytes = call.tokens.bytes(load.rows);
      call.tokens.at = take(in_place ? std::max(token_bytes, answer_bytes) : token_bytes);
    }
    call.answers = in_place ? call.tokens.at : take(answer_bytes);
    call.hidden.at = take(call.hidden.bytes(load.rows));
    if (load.sums_gate_up())
      call.gate_up_parts = take(call.gate_up_chunks * load.rows * gate_up_outputs() * sizeof(float));
  }
  scratch_at_ = next;
  scratch_bytes_ = scratch_bytes();
  return scratch_at_ + pool_.threads * scratch_bytes_;
}

// What the most demanding item needs.
size_t MoeCall::scratch_bytes() const {
  size_t most = CombineScratch(config_, gates_, in_.k, nullptr).bytes;
  for (size_t e = 0; e < active_.size(); ++e) most = std::max({most, gate_up_scratch(e), down_scratch(e)});
  return align(most);
}

size_t MoeCall::gate_up_scratch(size_t e) const {
  const ActiveCall& call = active_[e];
  const plan::ExpertLoad& load = loads_[e];
  if (!load.sums_gate_up()) {
    const size_t rows = work_.most_rows(Step::kGateUp, e), count = work_.most_count(Step::kGateUp, e);
    const GateUp parts(*call.expert, rows, count);
    return parts.panel * sizeof(float) + call.gate_up->scratch_bytes(rows, parts.width);
  }
  const size_t units = work_.most_count(Step::kFinishHidden, e);
  const size_t finish = (4 + kBlockTokens) * round_up(units, 16) * sizeof(float);
  if (!call.nodes) return std::max(finish, call.gate_up->scratch_bytes(load.rows, gate_up_outputs()));
  const size_t gate = node_scratch_bytes(*call.nodes->gate, *call.gate_up, load.rows);
  const size_t up = call.nodes->up ? node_scratch_bytes(*call.nodes->up, *call.gate_up, load.rows) : 0;
  return std::max({finish, gate, up});
}

size_t MoeCall::down_scratch(size_t e) const {
  const ActiveCall& call = active_[e];
  if (call.nodes) return node_scratch_bytes(*call.nodes->down, *call.down, loads_[e].rows);
  const size_t outputs = loads_[e].down.cut_k ? config_.hidden : work_.most_count(Step::kDown, e);
  return call.down->scratch_bytes(work_.most_rows(Step::kDown, e), outputs);
}

// ---- Region

void MoeCall::run(const Workspace& workspace) {
  workspace_ = &workspace;
  routing_.begin(slots_, config_.num_experts, chunks_);
  size_t participants = pool_.threads;
  if (chunks_ == 1) {
    count(0);
    prepare();
    place(0);
    if (one_token_)
      for (const ActiveCall& call : active_)
        if (&call == &active_[0] || call.tokens.at != active_[0].tokens.at) gather_row(call.tokens, 0, 0, 1);
    participants = std::min(participants, work_.items());
  }
  pool_.parallel_for(
      pool_.context, participants, [](void* call, size_t i) { static_cast<MoeCall*>(call)->participate(i); }, this);
  if (failure_) std::rethrow_exception(failure_);
  if (claims_) nodes_->expect(*claims_);
}

// The first items of the region: ids are counted; whoever counts the last of them plans; then they are placed.
bool MoeCall::route_in_region(size_t i) {
  if (i < chunks_) {
    count(i);
    if (counted_.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks_) {
      try {
        prepare();
      } catch (...) {
        failure_ = std::current_exception();
      }
      planned_.store(1, std::memory_order_release);
    }
    return true;
  }
  runtime::await(planned_, 1);
  if (failure_) return false;
  if (i < 2 * chunks_) {
    place(i - chunks_);
    placed_.fetch_add(1, std::memory_order_release);
  }
  return true;
}

void MoeCall::participate(size_t participant) {
  const TileScope tiles(kernels_.level());
  const size_t routing_items = chunks_ > 1 ? 2 * chunks_ : 0;
  size_t i = take_number();
  if (routing_items) {
    for (; i < routing_items; i = take_number())
      if (!route_in_region(i)) return;
    if (!route_in_region(i)) return;
    runtime::await(placed_, static_cast<uint32_t>(chunks_));
  }
  uint8_t* const scratch = scratch_of(participant);
  if (claims_) return work_by_nodes(nodes_->threads().current(participant), scratch);
  for (; i - routing_items < work_.items(); i = take_number()) do_item(i - routing_items, scratch);
}

void MoeCall::work_by_nodes(plan::Node node, uint8_t* scratch) {
  claims_->arrive(node);
  for (size_t step = 0; step < plan::kSteps; ++step)
    for (uint32_t i; (i = claims_->claim(step, node)) != runtime::kNoItem;) do_item(i, scratch);
}

void MoeCall::do_item(size_t number, uint8_t* scratch) {
  const WorkItem item = work_.item(number);
  if (item.wait_event != plan::kNoEvent) wait_for(item, scratch);
  execute(item, scratch);
  if (item.signal_event != plan::kNoEvent) events_[item.signal_event].fetch_add(1, std::memory_order_release);
}

// Threads that were expected on another node may not come; then their work is done here, before this item's scratch is used.
void MoeCall::wait_for(const WorkItem& item, uint8_t* scratch) {
  const runtime::Event& event = events_[item.wait_event];
  if (!claims_) return runtime::await(event, item.wait_count);
  while (!runtime::await_for_a_while(event, item.wait_count))
    for (uint32_t i; (i = claims_->claim_abandoned(static_cast<size_t>(item.step))) != runtime::kNoItem;) do_item(i, scratch);
}

void MoeCall::execute(const WorkItem& item, uint8_t* scratch) const {
  switch (item.step) {
    case Step::kGather: return gather(item);
    case Step::kGateUp:
      if (active_[item.expert].nodes) return gate_up_of_node(item, scratch);
      return loads_[item.expert].gate_up.cut_k ? gate_up_chunk(item, scratch) : gate_up(item, scratch);
    case Step::kFinishHidden: return finish_hidden(item, scratch);
    case Step::kDown: return active_[item.expert].nodes ? down_of_node(item, scratch) : down(item, scratch);
    case Step::kCombine: return combine(item, scratch);
  }
}

}  // namespace ort_hina::operators
