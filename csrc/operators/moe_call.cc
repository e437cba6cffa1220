#include "operators/moe_call.h"

#include <algorithm>
#include <new>

namespace ort_hina::operators {
namespace {

using kernels::MatmulArgs;
using kernels::MatmulKernel;
using plan::Step;
using plan::WorkItem;

// Columns of the weighted sum whose biases are widened at once.
constexpr size_t kBiasColumns = 512;
// Outputs whose weights a panel kernel holds at once: with 256 inputs in f32, 192 KB of L2, and as much again for the panel
// that is fetched meanwhile.
constexpr uint32_t kPanelOutputs = 192;

size_t align(size_t floats) { return (floats + 15) / 16 * 16; }  // to cache lines

// The distance between rows of tokens. Where they lie a multiple of 4 KB apart, all rows of a tile fall into one set of L1
// and evict each other, so a cache line is put between them.
size_t padded_row(size_t floats) {
  const size_t row = align(floats);
  return row % 256 ? row : row + 16;
}

plan::MatmulForm form_of(const MatmulKernel& kernel) {
  plan::MatmulForm form;
  form.cut_k = kernel.cut == kernels::Cut::kK;
  form.n_step = kernel.n_step;
  form.k_chunk = kernel.k_chunk;
  if (kernel.panel_k) form.n_most = kPanelOutputs;
  return form;
}

// The part of a matrix at output n and input k.
const void* at(const Matrix& matrix, size_t n, size_t k) {
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

template <typename T>
T& kept_by_thread() {
  thread_local T value;
  return value;
}

}  // namespace

MoeCall::MoeCall(const MoeConfig& config, Isa isa, const MoeInputs& inputs, const runtime::Pool& pool)
    : config_(config),
      isa_(isa),
      in_(inputs),
      pool_(pool),
      ops_(kernels::vector_ops(isa)),
      shared_row_(inputs.tokens == 1 && inputs.x_type == DataType::kF32 && !config.weight_on_input),
      token_stride_(shared_row_ ? 0 : padded_row(config.hidden)),
      hidden_stride_(padded_row(config.intermediate)),
      routing_(kept_by_thread<plan::Routing>()),
      work_(kept_by_thread<plan::WorkList>()),
      loads_(kept_by_thread<std::vector<plan::ExpertLoad>>()),
      active_(kept_by_thread<std::vector<ActiveCall>>()) {}

void MoeCall::plan() {
  const size_t slots = in_.tokens * in_.k;
  if (in_.ids_are_64_bit) plan::route(static_cast<const int64_t*>(in_.ids), slots, config_.num_experts, &routing_);
  else plan::route(static_cast<const int32_t*>(in_.ids), slots, config_.num_experts, &routing_);

  loads_.clear();
  active_.clear();
  for (const plan::ActiveExpert& active : routing_.active) {
    const Expert& expert = config_.experts[active.id];
    ActiveCall call = {};
    call.expert = &expert;
    call.gate_up = &kernels::pick(isa_, expert.gate.type, expert.gate.layout, active.count, gate_up_outputs(), config_.hidden);
    call.down = &kernels::pick(isa_, expert.down.type, expert.down.layout, active.count, config_.hidden, config_.intermediate);
    const plan::ExpertLoad load = {active.begin, active.count, form_of(*call.gate_up), form_of(*call.down)};
    call.gate_up_chunks = plan::chunk_count(load.gate_up, load.rows, config_.hidden);
    call.down_chunks = plan::chunk_count(load.down, load.rows, config_.intermediate);
    loads_.push_back(load);
    active_.push_back(call);
  }
  const plan::Problem problem = {&loads_,         in_.tokens,           slots, config_.hidden,
                                 config_.intermediate, !shared_row_, pool_.threads};
  plan::plan_work(problem, &work_);
}

// An expert's answers take the place of its gathered tokens: it has answered for none before it has read all.
size_t MoeCall::lay_out() {
  const size_t slots = in_.tokens * in_.k;
  hidden_at_ = shared_row_ ? 0 : slots * token_stride_;
  size_t next = hidden_at_ + slots * hidden_stride_;
  for (size_t e = 0; e < active_.size(); ++e) {
    ActiveCall& call = active_[e];
    const plan::ExpertLoad& load = loads_[e];
    if (load.gate_up.cut_k) {
      call.gate_up_parts = next;
      next += align(call.gate_up_chunks * load.rows * gate_up_outputs());
    }
    const bool in_place = !shared_row_ && !load.down.cut_k;
    call.answer_stride = in_place ? token_stride_ : config_.hidden;
    call.answers = in_place ? load.begin * token_stride_ : next;
    if (!in_place) next += align(call.down_chunks * load.rows * config_.hidden);
  }
  scratch_at_ = next;
  scratch_floats_ = scratch_floats();
  return scratch_at_ + pool_.threads * scratch_floats_;
}

// What the most demanding item needs.
size_t MoeCall::scratch_floats() const {
  size_t most = 0;
  for (const WorkItem& item : work_.items) {
    const ActiveCall& call = active_[item.expert];
    size_t floats = 0;
    switch (item.step) {
      case Step::kGather: break;
      case Step::kGateUp:
        if (!loads_[item.expert].gate_up.cut_k)
          floats = 2 * align(item.rows * item.count) + 2 * align(item.count) + call.gate_up->scratch_floats(2 * item.count);
        break;
      case Step::kFinishHidden: floats = 4 * align(item.count); break;
      case Step::kDown: floats = call.down->scratch_floats(item.count); break;
      case Step::kCombine:
        floats = align(in_.k * sizeof(kernels::CombineTerm) / sizeof(float)) + in_.k * kBiasColumns;
        break;
    }
    most = std::max(most, align(floats));
  }
  return most;
}

void MoeCall::run(const Workspace& workspace) {
  plan();
  const size_t floats = lay_out();
  const size_t event_bytes = align(work_.events) * sizeof(runtime::Event);
  uint8_t* memory = static_cast<uint8_t*>(workspace(event_bytes + floats * sizeof(float)));
  events_ = reinterpret_cast<runtime::Event*>(memory);
  for (uint32_t i = 0; i < work_.events; ++i) new (&events_[i]) runtime::Event(0);
  base_ = reinterpret_cast<float*>(memory + event_bytes);

  const size_t participants = std::min(pool_.threads, work_.items.size());
  pool_.parallel_for(
      pool_.context, participants, [](void* call, size_t i) { static_cast<MoeCall*>(call)->participate(i); }, this);
}

void MoeCall::participate(size_t participant) {
  float* scratch = base_ + scratch_at_ + participant * scratch_floats_;
  for (;;) {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= work_.items.size()) return;
    const WorkItem& item = work_.items[i];
    if (item.wait_event != plan::kNoEvent) runtime::await(events_[item.wait_event], item.wait_count);
    execute(item, scratch);
    if (item.signal_event != plan::kNoEvent) events_[item.signal_event].fetch_add(1, std::memory_order_release);
  }
}

void MoeCall::execute(const WorkItem& item, float* scratch) const {
  switch (item.step) {
    case Step::kGather: return gather(item);
    case Step::kGateUp:
      return loads_[item.expert].gate_up.cut_k ? gate_up_chunk(item) : gate_up(item, scratch);
    case Step::kFinishHidden: return finish_hidden(item, scratch);
    case Step::kDown: return down(item, scratch);
    case Step::kCombine: return combine(item, scratch);
  }
}

const float* MoeCall::token_row(size_t sorted) const {
  return shared_row_ ? static_cast<const float*>(in_.x) : base_ + sorted * token_stride_;
}

float MoeCall::routing_weight(size_t slot) const {
  float weight;
  const uint8_t* p = static_cast<const uint8_t*>(in_.weights) + slot * size_of(in_.weights_type);
  ops_.widen(p, in_.weights_type, 1, 1.0f, &weight);
  return weight;
}

void MoeCall::gather(const WorkItem& item) const {
  const uint8_t* x = static_cast<const uint8_t*>(in_.x);
  for (size_t row = item.row; row < item.row + item.rows; ++row) {
    const size_t slot = routing_.order[row];
    const float scale = config_.weight_on_input ? routing_weight(slot) : 1.0f;
    ops_.widen(x + slot / in_.k * config_.hidden * size_of(in_.x_type), in_.x_type, config_.hidden, scale,
               base_ + row * token_stride_);
  }
}

void MoeCall::gate_up(const WorkItem& item, float* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t step = expert.interleaved ? 2 : 1;
  const size_t outputs = step * item.count;
  float* gate = scratch;
  float* bias = gate + 2 * align(item.rows * item.count);
  float* panel = bias + 2 * align(item.count);
  // Rows are as wide as the item; interleaved, gate and up share them.
  float* up = expert.interleaved ? gate + 1 : gate + align(item.rows * item.count);

  MatmulArgs args = {token_row(item.row), token_stride_, nullptr,       expert.gate.ld, gate, outputs,
                     item.rows,           outputs,        config_.hidden, panel,          nullptr};
  const bool two = config_.gated && !expert.interleaved;
  args.w = at(expert.gate, step * item.begin, 0);
  args.next_w = two ? at(expert.up, item.begin, 0) : nullptr;
  call.gate_up->run(args);
  if (two) {
    args.w = args.next_w;
    args.next_w = nullptr;
    args.ldw = expert.up.ld;
    args.c = up;
    call.gate_up->run(args);
  }
  const float* gate_bias = widen_bias(ops_, expert.gate_bias, item.begin, item.count, bias);
  const float* up_bias = widen_bias(ops_, expert.up_bias, item.begin, item.count, bias + align(item.count));
  ops_.activate({gate, config_.gated ? up : nullptr, outputs, step, gate_bias, up_bias,
                 base_ + hidden_at_ + item.row * hidden_stride_ + item.begin, hidden_stride_, item.rows,
                 item.count, config_.activation});
}

void MoeCall::gate_up_chunk(const WorkItem& item) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t width = gate_up_outputs();
  const size_t chunk = item.begin / plan::chunk_inputs(loads_[item.expert].gate_up, item.rows, config_.hidden);
  float* parts = base_ + call.gate_up_parts + chunk * item.rows * width;
  const size_t outputs = expert.interleaved ? width : config_.intermediate;

  MatmulArgs args = {token_row(item.row) + item.begin, token_stride_, at(expert.gate, 0, item.begin), expert.gate.ld, parts,
                     width, item.rows, outputs, item.count, nullptr, nullptr};
  call.gate_up->run(args);
  if (config_.gated && !expert.interleaved) {
    args.w = at(expert.up, 0, item.begin);
    args.ldw = expert.up.ld;
    args.c = parts + config_.intermediate;
    call.gate_up->run(args);
  }
}

void MoeCall::finish_hidden(const WorkItem& item, float* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const Expert& expert = *call.expert;
  const size_t width = gate_up_outputs(), distance = item.rows * width;
  const size_t step = expert.interleaved ? 2 : 1;
  const size_t first_row = loads_[item.expert].begin;
  float* gate = scratch;
  float* up = expert.interleaved ? gate + 1 : gate + align(item.count);
  float* bias = gate + 2 * align(item.count);
  const float* gate_bias = widen_bias(ops_, expert.gate_bias, item.begin, item.count, bias);
  const float* up_bias = widen_bias(ops_, expert.up_bias, item.begin, item.count, bias + align(item.count));

  for (size_t row = 0; row < item.rows; ++row) {
    const float* parts = base_ + call.gate_up_parts + row * width;
    ops_.sum_chunks(parts + step * item.begin, call.gate_up_chunks, distance, step * item.count, gate);
    if (config_.gated && !expert.interleaved)
      ops_.sum_chunks(parts + config_.intermediate + item.begin, call.gate_up_chunks, distance, item.count, up);
    ops_.activate({gate, config_.gated ? up : nullptr, 0, step, gate_bias, up_bias,
                   base_ + hidden_at_ + (first_row + row) * hidden_stride_ + item.begin, 0, 1, item.count,
                   config_.activation});
  }
}

void MoeCall::down(const WorkItem& item, float* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const plan::ExpertLoad& load = loads_[item.expert];
  const Matrix& w = call.expert->down;
  const float* hidden = base_ + hidden_at_ + item.row * hidden_stride_;
  float* answers = base_ + call.answers;
  if (load.down.cut_k) {
    const size_t chunk = item.begin / plan::chunk_inputs(load.down, load.rows, config_.intermediate);
    float* c = answers + chunk * load.rows * call.answer_stride;
    call.down->run({hidden + item.begin, hidden_stride_, at(w, 0, item.begin), w.ld, c, call.answer_stride, item.rows,
                    config_.hidden, item.count, nullptr, nullptr});
  } else {
    float* c = answers + (item.row - load.begin) * call.answer_stride + item.begin;
    call.down->run({hidden, hidden_stride_, at(w, item.begin, 0), w.ld, c, call.answer_stride, item.rows, item.count,
                    config_.intermediate, scratch, nullptr});
  }
}

void MoeCall::combine(const WorkItem& item, float* scratch) const {
  auto* terms = reinterpret_cast<kernels::CombineTerm*>(scratch);
  float* biases = scratch + align(in_.k * sizeof(kernels::CombineTerm) / sizeof(float));
  uint8_t* y = static_cast<uint8_t*>(in_.y);
  for (size_t token = item.row; token < item.row + item.rows; ++token)
    for (size_t begin = item.begin; begin < item.begin + item.count; begin += kBiasColumns) {
      const size_t n = std::min(kBiasColumns, item.begin + item.count - begin);
      for (size_t j = 0; j < in_.k; ++j) {
        const size_t slot = token * in_.k + j;
        const uint32_t e = routing_.expert[slot];
        const ActiveCall& call = active_[e];
        const size_t row = routing_.position[slot] - loads_[e].begin;
        const float* bias = widen_bias(ops_, call.expert->down_bias, begin, n, biases + j * kBiasColumns);
        const float weight = config_.weight_on_input ? 1.0f : routing_weight(slot);
        terms[j] = {base_ + call.answers + row * call.answer_stride + begin, bias, weight, call.down_chunks,
                    loads_[e].rows * call.answer_stride};
      }
      ops_.combine({terms, in_.k, n, y + (token * config_.hidden + begin) * size_of(in_.x_type), in_.x_type});
    }
}

}  // namespace ort_hina::operators
