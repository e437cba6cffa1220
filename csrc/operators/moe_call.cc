#include "operators/moe_call.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "operators/tile_scope.h"

namespace ort_hina::operators {
namespace {

using kernels::kBlockTokens;
using kernels::MatmulArgs;
using kernels::MatmulKernel;
using plan::Step;
using plan::WorkItem;

// Columns of the weighted sum whose biases are widened at once.
constexpr size_t kBiasColumns = 512;
// With so few tokens memory is the limit, and [K,N] weights are read in runs as long as an item is wide.
constexpr size_t kFewRows = 32;
// Slots that one thread sorts in the time that it takes to wake another.
constexpr size_t kChunkSlots = 1024;
constexpr size_t kMaxRoutingChunks = 16;

size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }
size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

// The distance between rows. Where they lie a multiple of 4 KB apart, all rows of a tile fall into one set of L1 and evict each
// other, so a cache line is put between them.
size_t padded_row(size_t elements, size_t element_bytes) {
  const size_t bytes = align(elements * element_bytes);
  return (bytes % 1024 ? bytes : bytes + 64) / element_bytes;
}

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

Activations activations_of(const MatmulKernel& kernel, size_t inputs) {
  if (kernel.activations == DataType::kF32) return {0, padded_row(inputs, 4), DataType::kF32, 0};
  return {0, padded_row(kernels::padded_inputs(inputs), 2), DataType::kBF16, kernel.lanes_from};
}

bool same_form(const Activations& a, const Activations& b) { return a.type == b.type && a.lanes_from == b.lanes_from; }

// The part of a matrix at output n and input k.
const void* weights_at(const Matrix& matrix, size_t n, size_t k) {
  const size_t element = matrix.layout == Layout::kNK ? n * matrix.ld + k : k * matrix.ld + n;
  return matrix.data + element * size_of(matrix.type);
}

// f32 copies of bias elements [begin, begin+n).
const float* widen_bias(const kernels::VectorOps& ops, const Bias& bias, size_t begin, size_t n, float* to) {
  if (!bias.data) return nullptr;
  const size_t size = size_of(bias.type);
  const uint8_t* from = bias.data + begin * bias.stride * size;
  if (bias.stride == 1) {
    ops.widen(from, bias.type, n, 1.0f, to);
  } else {
    for (size_t i = 0; i < n; ++i) ops.widen(from + i * bias.stride * size, bias.type, 1, 1.0f, to + i);
  }
  return to;
}

// f32 copies of the biases of an item's hidden units, in scratch of 2·round_up(count, 16) floats.
struct GateUpBias {
  const float* gate;
  const float* up;
  GateUpBias(const kernels::VectorOps& ops, const Expert& expert, const WorkItem& item, float* scratch)
      : gate(widen_bias(ops, expert.gate_bias, item.begin, item.count, scratch)),
        up(widen_bias(ops, expert.up_bias, item.begin, item.count, scratch + round_up(item.count, 16))) {}
};

// Gate and up before the activation: rows of `width` floats in lanes or not, at the begin of an item's scratch.
struct GateUp {
  size_t step;   // 2: interleaved
  size_t width;  // floats of a row of each
  size_t up, bias, panel;  // where they begin, in floats
  GateUp(const Expert& expert, size_t rows, size_t count) {
    const size_t padded = round_up(rows, kBlockTokens);
    step = expert.interleaved ? 2 : 1;
    width = step * count;
    up = expert.interleaved ? 1 : round_up(padded * width, 16);
    bias = 2 * round_up(padded * count, 16);
    panel = bias + 2 * round_up(count, 16);
  }
};

// An address may be counted from 0, when only the size matters.
template <typename T>
T* take(uintptr_t* next, size_t count) {
  T* taken = reinterpret_cast<T*>(*next);
  *next += align(count * sizeof(T));
  return taken;
}

template <typename T>
T& kept_by_thread() {
  thread_local T value;
  return value;
}

}  // namespace

size_t Activations::bytes(size_t rows) const {
  const bool rows_only = type == DataType::kF32 || lanes_from > kBlockTokens;
  return align((rows_only ? rows : round_up(rows, kBlockTokens)) * stride * size_of(type));
}

bool Activations::in_lanes(size_t block, size_t rows) const {
  return type == DataType::kBF16 && std::min(kBlockTokens, rows - block * kBlockTokens) >= lanes_from;
}

size_t Activations::place(size_t row, size_t input, size_t rows) const {
  const bool lanes = in_lanes(row / kBlockTokens, rows);
  return at + (row * stride + input * (lanes ? kBlockTokens : 1)) * size_of(type);
}

CombineScratch::CombineScratch(const MoeConfig& config, const SigmoidGates& of_gates, size_t k, uint8_t* begin) {
  uintptr_t next = reinterpret_cast<uintptr_t>(begin);
  terms = take<kernels::CombineTerm>(&next, k + 1);
  weights = take<float>(&next, k);
  biases = take<float>(&next, k * kBiasColumns);
  addend = take<float>(&next, kBiasColumns);
  x = take<float>(&next, config.sigmoid_gates ? config.hidden : 0);
  gates = take<uint8_t>(&next, of_gates.scratch_bytes());
  bytes = next - reinterpret_cast<uintptr_t>(begin);
}

MoeCall::MoeCall(const MoeConfig& config, const KernelChoice& kernels, const SigmoidGates& gates, const MoeInputs& inputs,
                 const runtime::Pool& pool)
    : config_(config),
      kernels_(kernels),
      gates_(gates),
      in_(inputs),
      pool_(pool),
      ops_(kernels::vector_ops(kernels.level())),
      slots_(inputs.tokens * inputs.k),
      chunks_(std::min({std::max<size_t>(1, slots_ / kChunkSlots), kMaxRoutingChunks, pool.threads})),
      routing_(kept_by_thread<plan::Routing>()),
      work_(kept_by_thread<plan::WorkPlan>()),
      loads_(kept_by_thread<std::vector<plan::ExpertLoad>>()),
      active_(kept_by_thread<std::vector<ActiveCall>>()) {}

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
  return call;
}

void MoeCall::plan() {
  const auto once = [](const plan::ActiveExpert& active) { return active.count == 1; };
  one_token_ = in_.tokens == 1 && !config_.weight_on_input &&
               std::all_of(routing_.active.begin(), routing_.active.end(), once);
  loads_.clear();
  active_.clear();
  for (const plan::ActiveExpert& active : routing_.active) {
    ActiveCall call = plan_expert(active);
    plan::ExpertLoad load = {active.begin, active.count, form_of(*call.gate_up, active.count),
                                    form_of(*call.down, active.count)};
    // Hidden units go straight into down's blocks, so an item of gate and up has whole ones, whatever its own kernel wants.
    load.gate_up.row_step = std::max(load.gate_up.row_step, load.down.row_step);
    call.gate_up_chunks = plan::chunk_count(load.gate_up, load.rows, config_.hidden);
    call.down_chunks = plan::chunk_count(load.down, load.rows, config_.intermediate);
    loads_.push_back(load);
    active_.push_back(call);
  }
  work_.build({&loads_, in_.tokens, config_.hidden, config_.intermediate, !one_token_, pool_.threads});
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
    const bool in_place = !one_token_ && !load.down.cut_k;
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
    if (load.gate_up.cut_k)
      call.gate_up_parts = take(call.gate_up_chunks * load.rows * gate_up_outputs() * sizeof(float));
  }
  scratch_at_ = next;
  scratch_bytes_ = scratch_bytes();
  return scratch_at_ + pool_.threads * scratch_bytes_;
}

// What the most demanding item needs.
size_t MoeCall::scratch_bytes() const {
  size_t most = CombineScratch(config_, gates_, in_.k, nullptr).bytes;
  for (size_t e = 0; e < active_.size(); ++e) {
    const ActiveCall& call = active_[e];
    if (loads_[e].gate_up.cut_k) {
      const size_t units = work_.most_count(Step::kFinishHidden, e);
      most = std::max(most, (4 + kBlockTokens) * round_up(units, 16) * sizeof(float));
      most = std::max(most, call.gate_up->scratch_bytes(loads_[e].rows, gate_up_outputs()));
    } else {
      const size_t rows = work_.most_rows(Step::kGateUp, e), count = work_.most_count(Step::kGateUp, e);
      const GateUp parts(*call.expert, rows, count);
      most = std::max(most, parts.panel * sizeof(float) + call.gate_up->scratch_bytes(rows, parts.width));
    }
    const size_t outputs = loads_[e].down.cut_k ? config_.hidden : work_.most_count(Step::kDown, e);
    most = std::max(most, call.down->scratch_bytes(work_.most_rows(Step::kDown, e), outputs));
  }
  return align(most);
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
  bool routed = routing_items == 0;
  for (;;) {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (!routed) {
      if (!route_in_region(i)) return;
      if (i < routing_items) continue;
      runtime::await(placed_, static_cast<uint32_t>(chunks_));
      routed = true;
    }
    if (i - routing_items >= work_.items()) return;
    const WorkItem item = work_.item(i - routing_items);
    if (item.wait_event != plan::kNoEvent) runtime::await(events_[item.wait_event], item.wait_count);
    execute(item, base_ + scratch_at_ + participant * scratch_bytes_);
    if (item.signal_event != plan::kNoEvent) events_[item.signal_event].fetch_add(1, std::memory_order_release);
  }
}

void MoeCall::execute(const WorkItem& item, uint8_t* scratch) const {
  switch (item.step) {
    case Step::kGather: return gather(item);
    case Step::kGateUp: return loads_[item.expert].gate_up.cut_k ? gate_up_chunk(item, scratch) : gate_up(item, scratch);
    case Step::kFinishHidden: return finish_hidden(item, scratch);
    case Step::kDown: return down(item, scratch);
    case Step::kCombine: return combine(item, scratch);
  }
}

// ---- Items

float MoeCall::routing_weight(size_t slot) const {
  if (!in_.weights) return 1.0f;
  float weight;
  const uint8_t* p = static_cast<const uint8_t*>(in_.weights) + slot * size_of(in_.weights_type);
  ops_.widen(p, in_.weights_type, 1, 1.0f, &weight);
  return weight;
}

const uint8_t* MoeCall::token(size_t slot) const {
  return static_cast<const uint8_t*>(in_.x) + slot / in_.k * config_.hidden * size_of(in_.x_type);
}

void MoeCall::gather_row(const Activations& to, size_t sorted, size_t row, size_t rows) const {
  if (to.type == DataType::kBF16) return gather_block(to, sorted, row, 1, rows);
  const size_t slot = routing_.order[sorted];
  const float scale = config_.weight_on_input ? routing_weight(slot) : 1.0f;
  ops_.widen(token(slot), in_.x_type, config_.hidden, scale, at<float>(to.place(row, 0, rows)));
}

// Up to a block's tokens, from `row` on.
void MoeCall::gather_block(const Activations& to, size_t sorted, size_t row, size_t count, size_t rows) const {
  const void* from[kBlockTokens];
  float scales[kBlockTokens];
  for (size_t t = 0; t < count; ++t) {
    const size_t slot = routing_.order[sorted + t];
    from[t] = token(slot);
    scales[t] = config_.weight_on_input ? routing_weight(slot) : 1.0f;
  }
  ops_.pack({from, in_.x_type, config_.weight_on_input ? scales : nullptr, count, config_.hidden,
             kernels::padded_inputs(config_.hidden), at<uint16_t>(to.place(row, 0, rows)), to.stride,
             to.in_lanes(row / kBlockTokens, rows)});
}

void MoeCall::gather(const WorkItem& item) const {
  const Activations& to = active_[item.expert].tokens;
  const plan::ExpertLoad& load = loads_[item.expert];
  const size_t step = to.type == DataType::kBF16 ? kBlockTokens : 1;
  for (size_t row = item.row; row < item.row + item.rows; row += step) {
    if (step == 1) gather_row(to, load.begin + row, row, load.rows);
    else gather_block(to, load.begin + row, row, std::min<size_t>(step, item.row + item.rows - row), load.rows);
  }
}

void MoeCall::gate_up(const WorkItem& item, uint8_t* raw) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t rows = loads_[item.expert].rows;
  const GateUp parts(expert, item.rows, item.count);
  float* scratch = reinterpret_cast<float*>(raw);
  float *gate = scratch, *up = gate + parts.up, *bias = scratch + parts.bias;

  MatmulArgs args = {};
  args.a = base_ + call.tokens.place(item.row, 0, rows);
  args.lda = call.tokens.stride;
  args.c = gate;
  args.ldc = parts.width;
  args.m = item.rows, args.n = parts.width, args.k = config_.hidden;
  args.scratch = scratch + parts.panel;
  args.c_lanes = call.lanes;
  const bool two = config_.gated && !expert.interleaved;
  args.w = weights_at(expert.gate, parts.step * item.begin, 0);
  args.ldw = expert.gate.ld;
  args.next_w = two ? weights_at(expert.up, item.begin, 0) : nullptr;
  call.gate_up->run(args);
  if (two) {
    args.w = args.next_w;
    args.next_w = nullptr;
    args.ldw = expert.up.ld;
    args.c = up;
    call.gate_up->run(args);
  }
  if (call.lanes) activate_lanes(item, bias, gate, up, parts.width);
  else activate_rows(item, bias, gate, up, parts.width);
}

// Hidden units are padded with zeros to a whole number of kernel steps by the item that has the last of them.
size_t MoeCall::padded_units(const WorkItem& item) const {
  const bool last = item.begin + item.count == config_.intermediate;
  return last ? kernels::padded_inputs(config_.intermediate) - item.begin : item.count;
}

void MoeCall::pack_hidden(const ActiveCall& call, const WorkItem& item, size_t row, size_t count, size_t rows, const float* h,
                          size_t ld) const {
  const void* from[kBlockTokens];
  for (size_t t = 0; t < count; ++t) from[t] = h + t * ld;
  ops_.pack({from, DataType::kF32, nullptr, count, item.count, padded_units(item),
             at<uint16_t>(call.hidden.place(row, item.begin, rows)), call.hidden.stride,
             call.hidden.in_lanes(row / kBlockTokens, rows)});
}

void MoeCall::activate_rows(const WorkItem& item, float* bias_scratch, float* gate, const float* up, size_t width) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t rows = loads_[item.expert].rows, step = expert.interleaved ? 2 : 1;
  const GateUpBias bias(ops_, expert, item, bias_scratch);
  const bool direct = call.hidden.type == DataType::kF32;
  // In place otherwise: a unit is written where it, or one before it, was read.
  float* h = direct ? at<float>(call.hidden.place(item.row, item.begin, rows)) : gate;
  const size_t ldh = direct ? call.hidden.stride : width;
  ops_.activate({gate, config_.gated ? up : nullptr, width, step, bias.gate, bias.up, h, ldh, item.rows, item.count,
                 config_.activation});
  if (direct) return;
  for (size_t r = 0; r < item.rows; r += kBlockTokens)
    pack_hidden(call, item, item.row + r, std::min<size_t>(kBlockTokens, item.rows - r), rows, h + r * ldh, ldh);
}

void MoeCall::activate_lanes(const WorkItem& item, float* bias_scratch, float* gate, const float* up, size_t width) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t rows = loads_[item.expert].rows, step = expert.interleaved ? 2 : 1;
  const GateUpBias bias(ops_, expert, item, bias_scratch);
  for (size_t r = 0; r < item.rows; r += kBlockTokens) {
    const size_t count = std::min<size_t>(kBlockTokens, item.rows - r), block = r * width;
    if (call.hidden.in_lanes((item.row + r) / kBlockTokens, rows)) {
      const float* lanes_up = expert.interleaved ? gate + block + kBlockTokens : up + block;
      ops_.activate_lanes({gate + block, config_.gated ? lanes_up : nullptr, step, bias.gate, bias.up,
                           at<uint16_t>(call.hidden.place(item.row + r, item.begin, rows)), count, item.count,
                           padded_units(item), config_.activation});
    } else {
      float* h = gate + block;
      ops_.activate({h, config_.gated ? up + block : nullptr, width, step, bias.gate, bias.up, h, width, count, item.count,
                     config_.activation});
      pack_hidden(call, item, item.row + r, count, rows, h, width);
    }
  }
}

void MoeCall::gate_up_chunk(const WorkItem& item, uint8_t* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t width = gate_up_outputs(), rows = loads_[item.expert].rows;
  const size_t chunk = item.begin / plan::chunk_inputs(loads_[item.expert].gate_up, item.rows, config_.hidden);
  float* parts = at<float>(call.gate_up_parts) + chunk * item.rows * width;

  MatmulArgs args = {};
  args.a = base_ + call.tokens.place(0, item.begin, rows);
  args.lda = call.tokens.stride;
  args.c = parts;
  args.ldc = width;
  args.m = item.rows, args.n = expert.interleaved ? width : config_.intermediate, args.k = item.count;
  args.scratch = scratch;
  const bool two = config_.gated && !expert.interleaved;
  args.w = weights_at(expert.gate, 0, item.begin);
  args.ldw = expert.gate.ld;
  args.next_w = two ? weights_at(expert.up, 0, item.begin) : nullptr;
  call.gate_up->run(args);
  if (two) {
    args.w = args.next_w;
    args.next_w = nullptr;
    args.ldw = expert.up.ld;
    args.c = parts + config_.intermediate;
    call.gate_up->run(args);
  }
}

void MoeCall::finish_hidden(const WorkItem& item, uint8_t* raw) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t width = gate_up_outputs(), distance = item.rows * width, units = round_up(item.count, 16);
  const size_t step = expert.interleaved ? 2 : 1;
  float* gate = reinterpret_cast<float*>(raw);
  float* up = expert.interleaved ? gate + 1 : gate + units;
  const GateUpBias bias(ops_, expert, item, gate + 2 * units);
  float* packed = gate + 4 * units;
  const bool direct = call.hidden.type == DataType::kF32;

  for (size_t row = 0; row < item.rows; ++row) {
    const float* parts = at<float>(call.gate_up_parts) + row * width;
    float* h = direct ? at<float>(call.hidden.place(row, item.begin, item.rows)) : packed + row % kBlockTokens * units;
    ops_.sum_chunks(parts + step * item.begin, call.gate_up_chunks, distance, step * item.count, gate);
    if (config_.gated && !expert.interleaved)
      ops_.sum_chunks(parts + config_.intermediate + item.begin, call.gate_up_chunks, distance, item.count, up);
    ops_.activate({gate, config_.gated ? up : nullptr, 0, step, bias.gate, bias.up, h, 0, 1, item.count, config_.activation});
    const size_t first = row / kBlockTokens * kBlockTokens;
    if (!direct && (row + 1 == item.rows || (row + 1) % kBlockTokens == 0))
      pack_hidden(call, item, first, row + 1 - first, item.rows, packed, units);
  }
}

void MoeCall::down(const WorkItem& item, uint8_t* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const plan::ExpertLoad& load = loads_[item.expert];
  const Matrix& w = call.expert->down;
  float* answers = at<float>(call.answers);
  MatmulArgs args = {};
  args.lda = call.hidden.stride;
  args.ldw = w.ld;
  args.ldc = call.answer_stride;
  args.m = item.rows;
  args.scratch = scratch;
  if (load.down.cut_k) {
    const size_t chunk = item.begin / plan::chunk_inputs(load.down, load.rows, config_.intermediate);
    args.a = base_ + call.hidden.place(0, item.begin, load.rows);
    args.w = weights_at(w, 0, item.begin);
    args.c = answers + chunk * load.rows * call.answer_stride;
    args.n = config_.hidden, args.k = item.count;
  } else {
    args.a = base_ + call.hidden.place(item.row, 0, load.rows);
    args.w = weights_at(w, item.begin, 0);
    args.c = answers + item.row * call.answer_stride + item.begin;
    args.n = item.count, args.k = config_.intermediate;
  }
  call.down->run(args);
}

// The weight of each of the token's slots.
void MoeCall::weigh(const CombineScratch& scratch, size_t token) const {
  const float* x = scratch.x;
  if (config_.sigmoid_gates) {
    const void* row = this->token(token * in_.k);
    if (in_.x_type == DataType::kF32) x = static_cast<const float*>(row);
    else ops_.widen(row, in_.x_type, config_.hidden, 1.0f, scratch.x);
  }
  for (size_t j = 0; j < in_.k; ++j) {
    const size_t slot = token * in_.k + j;
    const uint32_t e = routing_.expert[slot];
    if (e == plan::kNoExpert) continue;
    const Matrix& gate = active_[e].expert->sigmoid_gate;
    scratch.weights[j] = config_.weight_on_input ? 1.0f : routing_weight(slot);
    if (gate.data) scratch.weights[j] *= gates_.value(gate, x, scratch.gates);
  }
}

// The token's answers at outputs [begin, begin + n); the addend comes last, since it is rounded into the sum once there.
size_t MoeCall::combine_terms(const CombineScratch& scratch, size_t token, size_t begin, size_t n) const {
  size_t count = 0;
  for (size_t j = 0; j < in_.k; ++j) {
    const size_t slot = token * in_.k + j;
    const uint32_t e = routing_.expert[slot];
    if (e == plan::kNoExpert) continue;
    const ActiveCall& call = active_[e];
    const size_t row = routing_.position[slot] - loads_[e].begin;
    const float* bias = widen_bias(ops_, call.expert->down_bias, begin, n, scratch.biases + j * kBiasColumns);
    scratch.terms[count++] = {at<float>(call.answers) + row * call.answer_stride + begin, bias, scratch.weights[j],
                              call.down_chunks, loads_[e].rows * call.answer_stride};
  }
  if (in_.addend) {
    const size_t element = token * config_.hidden + begin;
    ops_.widen(static_cast<const uint8_t*>(in_.addend) + element * size_of(in_.x_type), in_.x_type, n, 1.0f, scratch.addend);
    scratch.terms[count++] = {scratch.addend, nullptr, 1.0f, 1, 0};
  }
  return count;
}

void MoeCall::combine(const WorkItem& item, uint8_t* raw) const {
  const CombineScratch scratch(config_, gates_, in_.k, raw);
  uint8_t* y = static_cast<uint8_t*>(in_.y);
  for (size_t token = item.row; token < item.row + item.rows; ++token) {
    weigh(scratch, token);
    for (size_t begin = item.begin; begin < item.begin + item.count; begin += kBiasColumns) {
      const size_t n = std::min(kBiasColumns, item.begin + item.count - begin);
      const size_t count = combine_terms(scratch, token, begin, n);
      ops_.combine({scratch.terms, count, n, y + (token * config_.hidden + begin) * size_of(in_.x_type), in_.x_type});
    }
  }
}

}  // namespace ort_hina::operators
