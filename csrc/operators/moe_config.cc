#include "operators/moe_config.h"

#include <stdexcept>

namespace ort_hina::operators {
namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

size_t positive(const char* name, int64_t value) {
  if (value < 1) fail(std::string("attribute ") + name + ": expected at least 1, got " + to_string(value));
  return static_cast<size_t>(value);
}

// The sizes of one matrix, and how errors call it.
struct Role {
  const char* name;
  const MatrixAttributes& attributes;
  size_t k, n;
};

void check_length(const Role& role, const char* suffix, const std::vector<int64_t>& list, size_t expected) {
  if (list.size() != expected)
    fail(std::string("attribute ") + role.name + suffix + ": expected " + to_string(expected) + " values, got " +
         to_string(list.size()));
}

void check_lists(const Role& role, size_t experts) {
  const MatrixAttributes& a = role.attributes;
  check_length(role, "_offsets", a.offsets, experts);
  check_length(role, "_strides", a.strides, 2);
  if (!a.windows.empty()) check_length(role, "_windows", a.windows, experts);
  if (!a.bias_offsets.empty()) check_length(role, "_bias_offsets", a.bias_offsets, experts);
  if (!a.bias_windows.empty()) check_length(role, "_bias_windows", a.bias_windows, experts);
  if (a.strides[0] < 1 || a.strides[1] < 1)
    fail(std::string("attribute ") + role.name + "_strides: expected positive strides, got " + to_string(a.strides[0]) +
         ", " + to_string(a.strides[1]));
  if (a.bias_stride < 1)
    fail(std::string("attribute ") + role.name + "_bias_stride: expected at least 1, got " + to_string(a.bias_stride));
}

void check_absent(const VectorAttributes& gate) {
  if (!gate.windows.empty() || gate.stride != 1)
    fail("attribute sigmoid_gate_offsets: expected, since other attributes of sigmoid_gate are there, but it is absent");
}

void check_absent(const Role& role) {
  const MatrixAttributes& a = role.attributes;
  if (!a.strides.empty() || !a.windows.empty() || !a.bias_offsets.empty() || !a.bias_windows.empty() || a.bias_stride != 1)
    fail(std::string("attribute ") + role.name + "_offsets: expected, since other attributes of " + role.name +
         " are there, but it is absent");
}

// The window of one offset, once the last of `last_index + 1` elements is known to lie inside it.
const Window& checked_window(const Role& role, const char* what, size_t expert, int64_t offset,
                             const std::vector<int64_t>& indices, const std::vector<Window>& windows,
                             unsigned __int128 last_index) {
  const int64_t index = indices.empty() ? 0 : indices[expert];
  const std::string where = std::string(role.name) + what + " of expert " + to_string(expert);
  if (index < 0 || static_cast<size_t>(index) >= windows.size())
    fail(where + ": expected a window in [0, " + to_string(windows.size()) + "), got " + to_string(index));
  const Window& window = windows[static_cast<size_t>(index)];
  const unsigned __int128 end = static_cast<unsigned __int128>(offset) + (last_index + 1) * size_of(window.type);
  if (end > window.bytes)
    fail(where + ": bytes " + to_string(offset) + " to " + to_string(static_cast<uint64_t>(end)) +
         " lie beyond the end of window " + to_string(index) + " (" + to_string(window.bytes) + " bytes)");
  return window;
}

Matrix resolve_matrix(const Role& role, size_t expert, const std::vector<Window>& windows) {
  const MatrixAttributes& a = role.attributes;
  const int64_t offset = a.offsets[expert];
  if (offset == -1) return {};
  if (offset < 0)
    fail(std::string("attribute ") + role.name + "_offsets: expert " + to_string(expert) +
         ": expected a byte offset or -1, got " + to_string(offset));
  const unsigned __int128 last = static_cast<unsigned __int128>(role.k - 1) * static_cast<uint64_t>(a.strides[0]) +
                                 static_cast<unsigned __int128>(role.n - 1) * static_cast<uint64_t>(a.strides[1]);
  const Window& window = checked_window(role, " matrix", expert, offset, a.windows, windows, last);
  const bool nk = a.strides[0] == 1;
  return {window.data + offset, window.type, nk ? Layout::kNK : Layout::kKN,
          static_cast<size_t>(nk ? a.strides[1] : a.strides[0])};
}

Bias resolve_bias(const Role& role, size_t expert, const std::vector<Window>& windows) {
  const MatrixAttributes& a = role.attributes;
  if (a.bias_offsets.empty() || a.offsets[expert] == -1) return {};
  const int64_t offset = a.bias_offsets[expert];
  if (offset < 0)
    fail(std::string("attribute ") + role.name + "_bias_offsets: expert " + to_string(expert) +
         ": expected a byte offset, got " + to_string(offset));
  const unsigned __int128 last = static_cast<unsigned __int128>(role.n - 1) * static_cast<uint64_t>(a.bias_stride);
  const Window& window = checked_window(role, " bias", expert, offset, a.bias_windows, windows, last);
  return {window.data + offset, window.type, static_cast<size_t>(a.bias_stride)};
}

// Gate at output 2i, up at output 2i+1 of one matrix: both are then read as one stream.
bool are_interleaved(const Matrix& gate, const Matrix& up, int64_t n_stride) {
  return n_stride % 2 == 0 && up.type == gate.type && up.data == gate.data + size_of(gate.type) * (n_stride / 2);
}

void check_layout(const Role& role, bool interleaved) {
  const std::vector<int64_t>& s = role.attributes.strides;
  const bool unit = s[0] == 1 || s[1] == 1 || (interleaved && s[1] == 2);
  if (!unit)
    fail(std::string("attribute ") + role.name + "_strides: expected one of the two to be 1 (or gate and up interleaved), got " +
         to_string(s[0]) + ", " + to_string(s[1]));
}

std::string describe(const Matrix& matrix) {
  return std::string(name_of(matrix.type)) + (matrix.layout == Layout::kNK ? " [N,K]" : " [K,N]");
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  if (name == "identity") return Activation::kIdentity;
  if (name == "swiglu_oai") return Activation::kSwigluOai;
  fail("attribute activation: expected silu, gelu, gelu_tanh, relu, identity or swiglu_oai, got '" + name + "'");
}

bool parse_weight_on(const std::string& name) {
  if (name == "output") return false;
  if (name == "input") return true;
  fail("attribute weight_on: expected output or input, got '" + name + "'");
}

bool parse_skips_missing(const std::string& name) {
  if (name == "error") return false;
  if (name == "skip") return true;
  fail("attribute missing_experts: expected error or skip, got '" + name + "'");
}

Expert resolve_expert(const Role& gate, const Role& up, const Role& down, bool gated, size_t e,
                      const std::vector<Window>& windows) {
  Expert expert;
  expert.gate = resolve_matrix(gate, e, windows);
  expert.down = resolve_matrix(down, e, windows);
  if (gated) expert.up = resolve_matrix(up, e, windows);
  const bool missing = !expert.gate.data;
  if (missing != !expert.down.data || (gated && missing != !expert.up.data))
    fail("expert " + to_string(e) + ": some of its matrices are missing (offset -1) and some are not");
  if (missing) return expert;

  const bool same_strides = gated && gate.attributes.strides == up.attributes.strides;
  const int64_t n_stride = gate.attributes.strides[1];
  expert.interleaved = same_strides && are_interleaved(expert.gate, expert.up, n_stride);
  if (gated && (expert.gate.type != expert.up.type || expert.gate.layout != expert.up.layout))
    fail("expert " + to_string(e) + ": expected gate and up in one element type and layout, got " +
         describe(expert.gate) + " and " + describe(expert.up));
  check_layout(gate, expert.interleaved);
  if (gated) check_layout(up, expert.interleaved);
  check_layout(down, false);
  if (expert.interleaved && expert.gate.layout == Layout::kNK) expert.gate.ld /= 2;
  expert.gate_bias = resolve_bias(gate, e, windows);
  if (gated) expert.up_bias = resolve_bias(up, e, windows);
  expert.down_bias = resolve_bias(down, e, windows);
  return expert;
}

// A sigmoid gate is a matrix with one output.
MatrixAttributes as_matrices(const VectorAttributes& gate, size_t hidden) {
  MatrixAttributes matrices;
  matrices.offsets = gate.offsets;
  matrices.windows = gate.windows;
  matrices.strides = {gate.stride, gate.stride == 1 ? static_cast<int64_t>(hidden) : 1};
  return matrices;
}

void resolve_sigmoid_gates(const VectorAttributes& attributes, const std::vector<Window>& windows, MoeConfig* config) {
  config->sigmoid_gates = false;
  if (attributes.offsets.empty()) return check_absent(attributes);
  if (attributes.stride < 1)
    fail("attribute sigmoid_gate_stride: expected at least 1, got " + to_string(attributes.stride));
  if (config->weight_on_input)
    fail("attribute weight_on: expected output, since there are sigmoid_gate_offsets, got 'input'");
  const MatrixAttributes matrices = as_matrices(attributes, config->hidden);
  const Role role = {"sigmoid_gate", matrices, config->hidden, 1};
  check_lists(role, config->num_experts);
  for (size_t e = 0; e < config->num_experts; ++e) {
    Expert& expert = config->experts[e];
    if (!expert.gate.data) continue;
    expert.sigmoid_gate = resolve_matrix(role, e, windows);
    config->sigmoid_gates |= expert.sigmoid_gate.data != nullptr;
  }
}

std::vector<uint8_t> missing_experts(const MoeConfig& config) {
  std::vector<uint8_t> missing;
  for (const Expert& expert : config.experts) missing.push_back(!expert.gate.data);
  return missing;
}

}  // namespace

MoeConfig resolve(const MoeAttributes& a, const std::vector<Window>& windows) {
  MoeConfig config;
  config.num_experts = positive("num_experts", a.num_experts);
  config.hidden = positive("hidden_size", a.hidden_size);
  config.intermediate = positive("intermediate_size", a.intermediate_size);
  config.gated = !a.up.offsets.empty();
  config.weight_on_input = parse_weight_on(a.weight_on);
  config.activation = {parse_activation(a.activation), a.activation_alpha, a.activation_beta, a.swiglu_limit};
  if (config.activation.kind == Activation::kSwigluOai && !config.gated)
    fail("attribute activation: swiglu_oai needs up_offsets");

  const Role gate = {"gate", a.gate, config.hidden, config.intermediate};
  const Role up = {"up", a.up, config.hidden, config.intermediate};
  const Role down = {"down", a.down, config.intermediate, config.hidden};
  check_lists(gate, config.num_experts);
  config.gated ? check_lists(up, config.num_experts) : check_absent(up);
  check_lists(down, config.num_experts);
  for (size_t e = 0; e < config.num_experts; ++e)
    config.experts.push_back(resolve_expert(gate, up, down, config.gated, e, windows));
  resolve_sigmoid_gates(a.sigmoid_gate, windows, &config);
  if (parse_skips_missing(a.missing_experts)) config.left_out = missing_experts(config);
  return config;
}

}  // namespace ort_hina::operators
