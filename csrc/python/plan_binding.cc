#include "plan/attention.h"
#include "plan/routing.h"
#include "plan/work.h"
#include "python/bindings.h"

namespace ort_hina::python {
namespace {

py::dict route(const py::array_t<int64_t, py::array::c_style>& ids, size_t experts, size_t chunks,
               const std::vector<uint8_t>& left_out) {
  if (!left_out.empty() && left_out.size() != experts) throw std::invalid_argument("left_out: expected a value for each expert");
  plan::Routing routing;
  routing.begin(static_cast<size_t>(ids.size()), experts, chunks);
  for (size_t c = 0; c < chunks; ++c) {
    const size_t bad = routing.count(ids.data(), c);
    if (bad < routing.slots()) throw std::invalid_argument("slot " + std::to_string(bad) + " is out of range");
  }
  routing.arrange(left_out);
  for (size_t c = 0; c < chunks; ++c) routing.place(ids.data(), c);
  py::list active;
  for (const plan::ActiveExpert& e : routing.active) active.append(py::make_tuple(e.id, e.begin, e.count));
  py::dict d;
  d["active"] = active;
  d["order"] = routing.order;
  d["position"] = routing.position;
  d["expert"] = routing.expert;
  return d;
}

plan::MatmulForm form(const py::dict& d) {
  plan::MatmulForm f;
  f.cut_k = d["cut_k"].cast<bool>();
  f.n_step = d["n_step"].cast<uint32_t>();
  f.k_chunk = d["k_chunk"].cast<uint32_t>();
  if (d.contains("n_most")) f.n_most = d["n_most"].cast<uint32_t>();
  if (d.contains("wide")) f.wide = d["wide"].cast<bool>();
  if (d.contains("row_step")) f.row_step = d["row_step"].cast<uint32_t>();
  return f;
}

const char* step_name(plan::Step step) {
  switch (step) {
    case plan::Step::kGather: return "gather";
    case plan::Step::kGateUp: return "gate_up";
    case plan::Step::kFinishHidden: return "finish_hidden";
    case plan::Step::kDown: return "down";
    case plan::Step::kCombine: return "combine";
  }
  return "";
}

py::list plan_work(const std::vector<uint32_t>& rows, const py::dict& gate_up, const py::dict& down, size_t tokens,
                   size_t hidden, size_t intermediate, bool gather, size_t threads) {
  std::vector<plan::ExpertLoad> loads;
  uint32_t slots = 0;
  for (uint32_t r : rows) {
    loads.push_back({slots, r, form(gate_up), form(down)});
    slots += r;
  }
  plan::WorkPlan work;
  work.build({&loads, tokens, hidden, intermediate, gather, threads});
  py::list items;
  for (size_t number = 0; number < work.items(); ++number) {
    const plan::WorkItem i = work.item(number);
    py::dict d;
    d["step"] = step_name(i.step);
    d["expert"] = i.expert;
    d["row"] = i.row;
    d["rows"] = i.rows;
    d["begin"] = i.begin;
    d["count"] = i.count;
    d["wait"] = i.wait_event == plan::kNoEvent ? py::object(py::none()) : py::object(py::make_tuple(i.wait_event, i.wait_count));
    d["signal"] = i.signal_event == plan::kNoEvent ? py::object(py::none()) : py::object(py::int_(i.signal_event));
    items.append(d);
  }
  return items;
}

// Of each head: (keys, values), the maps of its rows, of key_bytes and value_bytes each.
std::vector<plan::KeyNodes> key_nodes(const py::dict& d, size_t heads) {
  const auto maps = d["heads"].cast<std::vector<std::pair<Runs, Runs>>>();
  if (maps.size() != heads) throw std::invalid_argument("placement: expected maps for each head of each sequence");
  std::vector<plan::KeyNodes> nodes(heads);
  for (size_t i = 0; i < heads; ++i) {
    const plan::PageMap keys = page_map(maps[i].first), values = page_map(maps[i].second);
    nodes[i].extend({&keys, 0, d["key_bytes"].cast<size_t>()}, {&values, 0, d["value_bytes"].cast<size_t>()});
  }
  return nodes;
}

py::list runs_in(const plan::KeyNodes::Keys& keys, const kernels::KeyRange& range) {
  py::list runs;
  for (const kernels::KeyRange& run : keys.runs)
    if (run.begin < range.end && run.end > range.begin)
      runs.append(py::make_tuple(std::max(run.begin, range.begin), std::min(run.end, range.end)));
  return runs;
}

py::list plan_attention(const std::vector<std::pair<size_t, size_t>>& batch, size_t queries, size_t kv_heads, size_t group,
                        bool causal, size_t window, const std::vector<std::pair<size_t, size_t>>& seen,
                        const std::optional<py::dict>& placement) {
  if (!seen.empty() && seen.size() != batch.size()) throw std::invalid_argument("seen: expected a range for each sequence");
  plan::AttentionProblem problem;
  for (const auto& [past, rows] : batch) problem.batch.push_back({past, rows});
  for (size_t b = 0; b < seen.size(); ++b) problem.batch[b].seen = {seen[b].first, seen[b].second};
  problem.queries = queries;
  problem.kv_heads = kv_heads;
  problem.group = group;
  problem.causal = causal;
  problem.window = window;
  std::vector<plan::KeyNodes> nodes;
  if (placement) nodes = key_nodes(*placement, batch.size() * kv_heads);
  py::list units;
  for (const plan::AttentionUnit& u : plan::plan_attention(problem, placement ? &nodes : nullptr).units) {
    py::dict d;
    d["batch"] = u.batch;
    d["head"] = u.head;
    d["query"] = u.query;
    d["queries"] = u.queries;
    d["keys"] = py::make_tuple(u.keys.begin, u.keys.end);
    d["part"] = u.part;
    d["parts"] = u.parts;
    d["block"] = u.block;
    d["node"] = node_or_none(u.node);
    if (u.node != plan::kUnknownNode) d["runs"] = runs_in(nodes[u.batch * kv_heads + u.head].nodes()[u.node], u.keys);
    units.append(d);
  }
  return units;
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("route", &route, py::arg("ids"), py::arg("experts"), py::arg("chunks") = 1,
        py::arg("left_out") = std::vector<uint8_t>{});
  m.def("plan_work", &plan_work, py::arg("rows"), py::arg("gate_up"), py::arg("down"), py::arg("tokens"), py::arg("hidden"),
        py::arg("intermediate"), py::arg("gather"), py::arg("threads"));
  m.def("plan_attention", &plan_attention, py::arg("batch"), py::arg("queries"), py::arg("kv_heads"), py::arg("group"),
        py::arg("causal") = true, py::arg("window") = 0, py::arg("seen") = std::vector<std::pair<size_t, size_t>>{},
        py::arg("placement") = py::none(),
        "Units of attention; batch: (past, rows) of each sequence; seen: the keys [begin, end) that a mask leaves it. "
        "placement: heads, page maps (bytes, node or None) of keys and values from row 0 of each head of each sequence, and key_bytes and "
        "value_bytes of a row. Of a unit on a node, runs are its keys.");
}

}  // namespace ort_hina::python
