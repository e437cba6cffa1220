// What each item of a MoE call does.
#include <algorithm>

#include "operators/moe_scratch.h"

namespace ort_hina::operators {
namespace {

using kernels::kBlockTokens;
using kernels::MatmulArgs;
using plan::Step;
using plan::WorkItem;

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

// An address may be counted from 0, when only the size matters.
template <typename T>
T* take(uintptr_t* next, size_t count) {
  T* taken = reinterpret_cast<T*>(*next);
  *next += align(count * sizeof(T));
  return taken;
}

}  // namespace

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

// But for its matrix and where its sums go.
NodeMatmul MoeCall::node_matmul(const WorkItem& item, const kernels::MatmulKernel* kernel, const Activations& inputs) const {
  NodeMatmul m = {};
  m.pool = &nodes_->pool();
  m.kernel = kernel;
  m.base = base_;
  m.inputs = inputs;
  m.tokens = loads_[item.expert].rows;
  return m;
}

void MoeCall::gate_up_of_node(const WorkItem& item, uint8_t* scratch) const {
  const ActiveCall& call = active_[item.expert];
  const size_t of_gate = call.nodes->gate->items().size(), width = gate_up_outputs();
  const bool is_gate = item.row < of_gate;
  NodeMatmul m = node_matmul(item, call.gate_up, call.tokens);
  m.partition = is_gate ? call.nodes->gate.get() : call.nodes->up.get();
  m.weights = is_gate ? &call.expert->gate : &call.expert->up;
  m.sums = at<float>(call.gate_up_parts) + (is_gate ? 0 : config_.intermediate);
  m.ld = width, m.distance = m.tokens * width;
  m.parts = call.gate_up_chunks;
  run_node_item(m, is_gate ? item.row : item.row - of_gate, scratch);
}

void MoeCall::down_of_node(const WorkItem& item, uint8_t* scratch) const {
  const ActiveCall& call = active_[item.expert];
  NodeMatmul m = node_matmul(item, call.down, call.hidden);
  m.partition = call.nodes->down.get();
  m.weights = &call.expert->down;
  m.sums = at<float>(call.answers);
  m.ld = call.answer_stride, m.distance = m.tokens * call.answer_stride;
  m.parts = call.down_chunks;
  run_node_item(m, item.row, scratch);
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
