#include "operators/attention.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/table.h"
#include "operators/attention_call.h"
#include "operators/attention_lengths.h"

namespace ort_hina::operators {
namespace {

using std::to_string;

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(what + ": expected " + expected + ", got " + got);
}

size_t positive(const char* name, int64_t value) {
  if (value < 1) refuse(std::string("attribute ") + name, "at least 1", to_string(value));
  return static_cast<size_t>(value);
}

bool flag(const char* name, int64_t value) {
  if (value != 0 && value != 1) refuse(std::string("attribute ") + name, "0 or 1", to_string(value));
  return value == 1;
}

float epsilon(const char* name, float value) {
  if (!(value > 0.0f) || std::isinf(value))
    refuse(std::string("attribute ") + name, "a finite number of more than 0", to_string(value));
  return value;
}

AttentionRule rule_of(const AttentionAttributes& a) {
  AttentionRule rule;
  rule.heads = positive("num_heads", a.num_heads);
  rule.kv_heads = positive("kv_num_heads", a.kv_num_heads);
  if (rule.heads % rule.kv_heads)
    refuse("attribute num_heads", "a multiple of " + to_string(a.kv_num_heads) + " (kv_num_heads)", to_string(a.num_heads));
  if (!std::isfinite(a.scale)) refuse("attribute scale", "a finite number", to_string(a.scale));
  rule.scale = a.scale;
  if (!(a.softcap >= 0.0f) || std::isinf(a.softcap))
    refuse("attribute softcap", "a finite number of at least 0", to_string(a.softcap));
  rule.softcap = a.softcap;
  rule.causal = flag("causal", a.causal);
  if (a.local_window_size != -1 && a.local_window_size < 1)
    refuse("attribute local_window_size", "-1 or at least 1", to_string(a.local_window_size));
  if (a.local_window_size != -1 && !rule.causal)
    refuse("attribute local_window_size", "-1, since causal is 0", to_string(a.local_window_size));
  rule.window = a.local_window_size == -1 ? 0 : static_cast<size_t>(a.local_window_size);
  rule.rotary = flag("do_rotary", a.do_rotary);
  rule.rotary_interleaved = flag("rotary_interleaved", a.rotary_interleaved);
  if (a.smooth_softmax < -1 || a.smooth_softmax > 1)
    refuse("attribute smooth_softmax", "-1, 0 or 1", to_string(a.smooth_softmax));
  rule.smooth = a.smooth_softmax == 1;
  epsilon("qk_norm_epsilon", a.qk_norm_epsilon);
  rule.query_epsilon = epsilon("q_norm_epsilon", a.q_norm_epsilon);
  rule.key_epsilon = epsilon("k_norm_epsilon", a.k_norm_epsilon);
  return rule;
}

std::string element(const char* what, size_t i) { return std::string(what) + "[" + to_string(i) + "]"; }

// Where no input says how many keys a sequence has.
[[noreturn]] void refuse_total(const AttentionInputs& in, const std::string& expected, const std::string& got) {
  if (in.total_is_mask_width) refuse("input 17 (attention_mask)", "a width of " + expected, got);
  refuse("input 6 (total_sequence_length)", expected, got);
}

void check_total(const AttentionInputs& in) {
  if (in.total_length < in.queries)
    refuse_total(in, "at least " + to_string(in.queries) + ", the new tokens", to_string(in.total_length));
  const size_t room = in.keys.past_length + in.queries;
  if (in.seqlens_k == nullptr && in.total_length > room)
    refuse_total(in, "at most " + to_string(room) + " (" + to_string(in.keys.past_length) +
                 " past keys, as input 3 (past_key) holds, and the new ones)", to_string(in.total_length));
}

void check_lengths(const AttentionInputs& in) {
  for (size_t b = 0; in.seqlens_k && b < in.batch; ++b) {
    const int64_t keys = int64_t{in.seqlens_k[b]} + 1;
    const std::string name = element("input 5 (seqlens_k)", b);
    if (keys < 1 || static_cast<size_t>(keys) > in.total_length)
      refuse(name, "0 to " + to_string(static_cast<int64_t>(in.total_length) - 1) + " (total_sequence_length - 1)",
             to_string(in.seqlens_k[b]));
    const size_t past = sequence_of(in, b).past;
    if (past > in.keys.past_length)
      refuse(name, "at most " + to_string(in.keys.past_length) + " past keys, as input 3 (past_key) holds",
             to_string(past) + " (of " + to_string(keys) + " keys " + to_string(in.queries) + " are new)");
  }
}

void check_positions(const AttentionInputs& in) {
  for (size_t b = 0; b < in.batch; ++b)
    for (size_t s = 0; s < sequence_of(in, b).rows; ++s) {
      const int64_t position = position_of(in, b, s);
      if (position >= 0 && static_cast<size_t>(position) < in.rotary.positions) continue;
      refuse(in.position_ids ? element("input 9 (position_ids)", b * in.queries + s) : "position " + to_string(position),
             "0 to " + to_string(static_cast<int64_t>(in.rotary.positions) - 1) + ", the rows of input 7 (cos_cache)",
             to_string(position));
    }
}

}  // namespace

Attention::Attention(const AttentionAttributes& attributes, Isa level)
    : rule_(rule_of(attributes)), ops_(kernels::vector_ops(level)) {}

void Attention::check(const AttentionInputs& in) const {
  if (rule_.smooth && in.sink) refuse("attribute smooth_softmax", "0, since input 11 (head_sink) is given", "1");
  check_total(in);
  check_lengths(in);
  if (rule_.rotary && !in.rotary.per_token) check_positions(in);
}

void Attention::run(const AttentionInputs& in, const runtime::Pool& pool, const KeyPlacement* placement) const {
  AttentionCall(in, rule_, ops_, placement).run(pool);
}

}  // namespace ort_hina::operators
