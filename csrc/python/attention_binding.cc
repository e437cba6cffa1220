#include <algorithm>
#include <memory>

#include "operators/attention.h"
#include "operators/cache_placement.h"
#include "python/bindings.h"
#include "python/std_pool.h"

namespace ort_hina::python {
namespace {

template <typename T>
void take(const py::dict& values, const char* name, T* value) {
  if (values.contains(name)) *value = values[name].cast<T>();
}

operators::AttentionAttributes attention_attributes(const py::dict& a) {
  operators::AttentionAttributes r;
  take(a, "num_heads", &r.num_heads);
  take(a, "kv_num_heads", &r.kv_num_heads);
  take(a, "scale", &r.scale);
  take(a, "softcap", &r.softcap);
  take(a, "local_window_size", &r.local_window_size);
  take(a, "causal", &r.causal);
  take(a, "do_rotary", &r.do_rotary);
  take(a, "rotary_interleaved", &r.rotary_interleaved);
  take(a, "smooth_softmax", &r.smooth_softmax);
  take(a, "qk_norm_epsilon", &r.qk_norm_epsilon);
  r.q_norm_epsilon = r.k_norm_epsilon = r.qk_norm_epsilon;
  take(a, "q_norm_epsilon", &r.q_norm_epsilon);
  take(a, "k_norm_epsilon", &r.k_norm_epsilon);
  return r;
}

size_t product(std::initializer_list<size_t> factors) {
  size_t p = 1;
  for (size_t f : factors) p *= f;
  return p;
}

// The caller's own memory: what pybind11 would convert would be gone by the time of the call.
const void* expect_bytes(const char* name, const py::handle& value, size_t bytes) {
  if (!py::isinstance<Bytes>(value)) throw std::invalid_argument(std::string(name) + ": expected a contiguous uint8 array");
  const Bytes array = value.cast<Bytes>();
  if (static_cast<size_t>(array.size()) != bytes)
    throw std::invalid_argument(std::string(name) + ": expected " + std::to_string(bytes) + " bytes, got " +
                                std::to_string(array.size()));
  return array.data();
}

// Sizes of a call, by name.
struct Sizes {
  explicit Sizes(const py::dict& d) {
    take(d, "batch", &batch);
    take(d, "queries", &queries);
    take(d, "key_size", &key);
    take(d, "value_size", &value);
    take(d, "past", &past);
    take(d, "total", &total);
    take(d, "rotary_positions", &positions);
    take(d, "rotary_width", &width);
    take(d, "rotary_batch", &rotary_batch);
    take(d, "mask_bytes", &mask_bytes);
    take(d, "q_norm_heads", &q_norm_heads);
    take(d, "k_norm_heads", &k_norm_heads);
    take(d, "bias_batch", &bias_batch);
    take(d, "bias_heads", &bias_heads);
    if (key == 0 || value == 0) throw std::invalid_argument("key_size, value_size: expected at least 1");
    if (2 * width > key) throw std::invalid_argument("rotary_width: expected at most half of key_size");
    if (rotary_batch && (positions != queries || (rotary_batch != 1 && rotary_batch != batch)))
      throw std::invalid_argument("rotary_batch: expected 1 or batch, and as many rotary_positions as queries");
    if (mask_bytes != 1 && mask_bytes != 4 && mask_bytes != 8)
      throw std::invalid_argument("mask_bytes: expected 1, 4 or 8");
  }
  size_t batch = 1, queries = 1, key = 0, value = 0, past = 0, total = 0, positions = 0, width = 0;
  size_t bias_batch = 1, bias_heads = 1;
  size_t rotary_batch = 0;  // 0: a table of positions
  size_t mask_bytes = 1;
  size_t q_norm_heads = 1, k_norm_heads = 1;
};

// Pages that a test makes up: pages(first address, count) gives their nodes, None where one is not known; or None: refused.
runtime::PageSource made_up_pages(const py::dict& d) {
  const py::function pages = d["pages"];
  return {d["page_bytes"].cast<size_t>(), [pages](uintptr_t first, size_t count, plan::Node* nodes) {
            const auto answer = pages(first, count).cast<std::optional<std::vector<std::optional<uint32_t>>>>();
            if (!answer) return false;
            if (answer->size() != count) throw std::invalid_argument("pages: expected a node for each page");
            for (size_t i = 0; i < count; ++i) {
              const std::optional<uint32_t> node = (*answer)[i];
              nodes[i] = node ? static_cast<plan::Node>(*node) : plan::kUnknownNode;
            }
            return true;
          }};
}

std::unique_ptr<operators::CachePlacement> made_up_placement(const py::dict& d) {
  const size_t least = d.contains("least_bytes") ? d["least_bytes"].cast<size_t>() : operators::CachePlacement::kLeastBytes;
  return std::make_unique<operators::CachePlacement>(made_up_threads(d), made_up_pages(d), least);
}

// A node, ready to run.
class NativeAttention {
 public:
  NativeAttention(const py::dict& attributes, const std::string& isa, const std::optional<py::dict>& numa)
      : attention_(attention_attributes(attributes), isa_by_name(isa)), caches_(numa ? made_up_placement(*numa) : nullptr) {}

  py::tuple run(const std::string& type, const py::dict& sizes, const py::dict& tensors, size_t threads, bool in_place,
                const py::dict& types) {
    if (threads == 0) throw std::invalid_argument("threads: expected at least 1");
    const Sizes s(sizes);
    operators::AttentionInputs in = {};
    in.type = data_type(type);
    read(s, tensors, types, &in);
    attention_.check(in);
    const operators::AttentionRule& rule = attention_.rule();
    const size_t element = size_of(in.type), rows = s.batch * rule.kv_heads * in.keys.present_length;
    py::array_t<uint8_t> output(s.batch * s.queries * rule.heads * s.value * element);
    // NaN of every type: new memory may hold what an earlier call answered.
    std::fill_n(output.mutable_data(), output.size(), uint8_t{0xff});
    py::array_t<uint8_t> keys(in_place ? 0 : rows * s.key * element), values(in_place ? 0 : rows * s.value * element);
    if (in_place) {
      if (s.past < s.total) throw std::invalid_argument("in_place: expected a past of at least `total` rows");
      keys = tensors["past_key"].cast<py::array_t<uint8_t>>();
      values = tensors["past_value"].cast<py::array_t<uint8_t>>();
    }
    in.keys.present = keys.mutable_data();
    in.values.present = values.mutable_data();
    in.output = output.mutable_data();
    const runtime::Pool pool = {&threads, std_parallel_for, threads};
    {
      const operators::CachePlacement::Lease places = caches_ ? caches_->look(in, rule) : operators::CachePlacement::Lease();
      if (caches_) places_ = places.placement() ? *places.placement()->heads : std::vector<plan::KeyNodes>();
      py::gil_scoped_release release;
      attention_.run(in, pool, places.placement());
    }
    return py::make_tuple(output, keys, values);
  }

  // Of the last call, for each head: runs of keys (begin, end, node), by node.
  py::list places() const {
    py::list heads;
    for (const plan::KeyNodes& head : places_) {
      py::list runs;
      for (size_t node = 0; node < head.nodes().size(); ++node)
        for (const kernels::KeyRange& run : head.nodes()[node].runs) runs.append(py::make_tuple(run.begin, run.end, node));
      heads.append(runs);
    }
    return heads;
  }

 private:
  static operators::TokenRows rows_of_heads(const Sizes& s, const void* data, size_t heads, size_t size) {
    return {data, s.queries * heads * size, heads * size, size};
  }

  void read(const Sizes& s, const py::dict& tensors, const py::dict& types, operators::AttentionInputs* in) const {
    const operators::AttentionRule& rule = attention_.rule();
    const size_t element = size_of(in->type), tokens = s.batch * s.queries, cached = s.batch * rule.kv_heads * s.past;
    in->batch = s.batch;
    in->queries = s.queries;
    in->total_length = s.total;
    const auto bytes = [&](const char* name, size_t count, size_t size) -> const void* {
      return tensors.contains(name) ? expect_bytes(name, tensors[name], count * size) : nullptr;
    };
    const auto required = [&](const char* name, size_t count, size_t size) {
      if (const void* data = bytes(name, count, size)) return data;
      throw std::invalid_argument(std::string(name) + ": expected a tensor");
    };
    const auto type_of = [&](const char* name) {
      return types.contains(name) ? data_type(types[name].cast<std::string>()) : in->type;
    };
    in->query = rows_of_heads(s, required("query", tokens * rule.heads * s.key, element), rule.heads, s.key);
    in->key = rows_of_heads(s, required("key", tokens * rule.kv_heads * s.key, element), rule.kv_heads, s.key);
    in->value = rows_of_heads(s, required("value", tokens * rule.kv_heads * s.value, element), rule.kv_heads, s.value);
    const size_t length = std::max(s.past, s.total);
    in->keys = {s.past ? required("past_key", cached * s.key, element) : nullptr, nullptr, s.past, length, s.key};
    in->values = {s.past ? required("past_value", cached * s.value, element) : nullptr, nullptr, s.past, length, s.value};
    in->seqlens_k = static_cast<const int32_t*>(bytes("seqlens_k", s.batch, sizeof(int32_t)));
    in->mask = bytes("attention_mask", s.batch * s.total, s.mask_bytes);
    in->mask_bytes = s.mask_bytes;
    const auto norm = [&](const char* name, size_t normed, size_t heads) -> operators::HeadNorm {
      if (normed != 1 && normed != heads) throw std::invalid_argument(std::string(name) + ": expected 1 head, or all");
      return {bytes(name, normed * s.key, size_of(type_of(name))), type_of(name), normed != 1};
    };
    in->query_norm = norm("q_norm_weight", s.q_norm_heads, rule.heads);
    in->key_norm = norm("k_norm_weight", s.k_norm_heads, rule.kv_heads);
    if (rule.rotary) {
      const size_t angles = std::max<size_t>(1, s.rotary_batch) * s.positions * s.width;
      in->rotary.type = type_of("cos_cache");
      in->rotary.cos = required("cos_cache", angles, size_of(in->rotary.type));
      in->rotary.sin = required("sin_cache", angles, size_of(in->rotary.type));
      in->rotary.positions = s.positions;
      in->rotary.width = s.width;
      in->rotary.per_token = s.rotary_batch != 0;
      in->rotary.batch_rows = s.rotary_batch > 1 ? s.queries : 0;
      in->rotary.interleaved = rule.rotary_interleaved;
    }
    in->position_ids = static_cast<const int64_t*>(bytes("position_ids", tokens, sizeof(int64_t)));
    in->bias_type = type_of("attention_bias");
    in->bias = bytes("attention_bias", product({s.bias_batch, s.bias_heads, s.queries, s.total}), size_of(in->bias_type));
    if ((s.bias_batch != 1 && s.bias_batch != s.batch) || (s.bias_heads != 1 && s.bias_heads != rule.heads))
      throw std::invalid_argument("bias_batch, bias_heads: expected 1, or those of the query");
    in->bias_head_stride = s.bias_heads == 1 ? 0 : s.queries * s.total;
    in->bias_batch_stride = s.bias_batch == 1 ? 0 : s.bias_heads * s.queries * s.total;
    in->sink_type = type_of("head_sink");
    in->sink = bytes("head_sink", rule.heads, size_of(in->sink_type));
  }

  operators::Attention attention_;
  std::unique_ptr<operators::CachePlacement> caches_;
  std::vector<plan::KeyNodes> places_;
};

}  // namespace

void bind_attention(py::module_& m) {
  py::class_<NativeAttention>(m, "GroupQueryAttention", "One GroupQueryAttention node (docs/operators.md).")
      .def(py::init<const py::dict&, const std::string&, const std::optional<py::dict>&>(), py::arg("attributes"),
           py::arg("isa") = "", py::arg("numa") = py::none(),
           "numa: a made-up machine: nodes, distances, threads (the node of each participant of a region), page_bytes, "
           "pages(first address, count), which gives the node of each page, and least_bytes of a call that is looked at.")
      .def_property_readonly("places", &NativeAttention::places,
                             "What the last call knew of its keys, for each head of each sequence: runs (begin, end, node), "
                             "the last one of all without end. Empty: nothing.")
      .def("run", &NativeAttention::run, py::arg("type"), py::arg("sizes"), py::arg("tensors"), py::arg("threads") = 1,
           py::arg("in_place") = false, py::arg("types") = py::dict(),
           "output, present_key and present_value, as uint8 views of their elements, all of one type. tensors: name to "
           "uint8 view; sizes: batch, queries, key_size, value_size, past, total, and of what is given rotary_positions, "
           "rotary_width, rotary_batch (angles of each token), mask_bytes (of an element), bias_batch, bias_heads, q_norm_heads "
           "and k_norm_heads (1, or all). in_place: past_key and past_value are written and returned. types: of cos_cache (and "
           "sin_cache), attention_bias, head_sink, q_norm_weight and k_norm_weight, where they have another than the query.");
}

}  // namespace ort_hina::python
