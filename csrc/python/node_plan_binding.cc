#include <algorithm>
#include <memory>

#include "plan/node_partition.h"
#include "python/bindings.h"
#include "runtime/node_claims.h"

namespace ort_hina::python {

plan::PageMap page_map(const Runs& runs) {
  plan::PageMap map;
  for (const auto& [bytes, node] : runs) {
    if (node && *node >= plan::kUnknownNode) throw std::invalid_argument("page map: a node is out of range");
    map.append(bytes, node ? static_cast<plan::Node>(*node) : plan::kUnknownNode);
  }
  return map;
}

runtime::ThreadNodes made_up_threads(const py::dict& d) {
  runtime::ThreadNodes threads;
  threads.nodes = d["nodes"].cast<size_t>();
  threads.distances.assign(threads.nodes, std::vector<uint32_t>(threads.nodes, 20));
  for (size_t n = 0; n < threads.nodes; ++n) threads.distances[n][n] = 10;
  if (d.contains("distances")) threads.distances = d["distances"].cast<std::vector<std::vector<uint32_t>>>();
  const auto of_threads = d["threads"].cast<std::vector<std::optional<uint32_t>>>();
  threads.current = [of_threads](size_t i) {
    const std::optional<uint32_t> node = of_threads[i % of_threads.size()];
    return node ? static_cast<plan::Node>(*node) : plan::kUnknownNode;
  };
  return threads;
}

py::object node_or_none(plan::Node node) {
  return node == plan::kUnknownNode ? py::object(py::none()) : py::object(py::int_(node));
}

namespace {

py::dict piece_of(const plan::Piece& piece, const plan::PiecePool& pool) {
  py::list rows;
  for (uint32_t i = 0; i < piece.rows; ++i) rows.append(piece.step ? piece.row + i * piece.step : pool.listed(piece)[i]);
  py::dict d;
  d["rows"] = rows;
  d["step"] = piece.step;
  d["columns"] = py::make_tuple(piece.begin, piece.end);
  d["rank"] = piece.rank;
  d["ranks"] = piece.ranks;
  d["first"] = piece.first != 0;
  return d;
}

py::dict node_partition(const Runs& runs, uint64_t begin, uint32_t rows, uint32_t columns, uint32_t element,
                        const std::optional<uint64_t>& row_stride, bool rows_are_inputs, uint32_t column_step,
                        size_t threads) {
  const plan::StoredMatrix matrix = {begin, rows, columns, element, row_stride.value_or(uint64_t{columns} * element)};
  if (element == 0 || column_step == 0 || threads == 0)
    throw std::invalid_argument("element, column_step and threads: expected at least 1");
  if (matrix.row_stride < matrix.row_bytes()) throw std::invalid_argument("row_stride: expected at least a row's bytes");
  const plan::PageMap map = page_map(runs);
  if (rows && columns && map.bytes() < matrix.row_begin(rows - 1) + matrix.row_bytes())
    throw std::invalid_argument("page map: expected one that covers the matrix");
  plan::PiecePool pool;
  plan::CutTiles known;
  const plan::NodePartition partition(
      map, matrix,
      {rows_are_inputs ? plan::RowsAre::kInputs : plan::RowsAre::kOutputs, column_step, plan::item_bytes(matrix, threads)}, &pool,
      &known);
  py::list items;
  for (const plan::NodePartition::Item& item : partition.items()) {
    const plan::NodePartition::Tile tile = partition.tile(item.tile);
    py::list pieces;
    for (const plan::Piece* piece = pool.begin(item.pieces); piece != pool.end(item.pieces); ++piece)
      pieces.append(piece_of(*piece, pool));
    py::dict d;
    d["node"] = node_or_none(item.node);
    d["row"] = tile.row;
    d["rows"] = tile.rows;
    d["column"] = tile.begin;
    d["columns"] = tile.columns;
    d["part"] = tile.part;
    d["most"] = node_or_none(partition.node_at(tile.row, tile.begin));
    d["pieces"] = pieces;
    items.append(d);
  }
  py::dict d;
  d["items"] = items;
  d["parts"] = partition.parts();
  d["ranks"] = partition.ranks();
  d["pool_bytes"] = pool.bytes();
  return d;
}

// Claims of one call, made by hand.
class Claims {
 public:
  // queues: for each step, the items of each node and, last, those of anyone.
  Claims(const std::vector<std::vector<std::vector<uint32_t>>>& queues, const std::vector<std::vector<uint32_t>>& distances,
         const std::vector<uint32_t>& expected, bool in_memory)
      : threads_{distances.size(), distances, nullptr}, expected_(new std::atomic<uint32_t>[distances.size()]()) {
    for (size_t n = 0; n < std::min(expected.size(), distances.size()); ++n) expected_[n] = expected[n];
    queues_.begin(queues.size(), distances.size());
    for (size_t step = 0; step < queues.size(); ++step) {
      if (queues[step].size() != distances.size() + 1)
        throw std::invalid_argument("queues: expected one for each node, and one of anyone, in each step");
      for (size_t queue = 0; queue < queues[step].size(); ++queue)
        for (const uint32_t item : queues[step][queue]) queues_.add(step, node(queue), item);
    }
    claims_ = std::make_unique<runtime::NodeClaims>(
        queues_, threads_, in_memory ? runtime::Limit::kMemory : runtime::Limit::kArithmetic, expected_.get());
  }

  void arrive(const std::optional<uint32_t>& of) { claims_->arrive(of ? node(*of) : plan::kUnknownNode); }
  std::optional<uint32_t> claim(size_t step, const std::optional<uint32_t>& of) {
    if (step >= queues_.steps()) throw std::invalid_argument("step: out of range");
    return item_or_none(claims_->claim(step, of ? node(*of) : plan::kUnknownNode));
  }
  std::optional<uint32_t> claim_abandoned(size_t step) { return item_or_none(claims_->claim_abandoned(std::min(step, queues_.steps()))); }

 private:
  static std::optional<uint32_t> item_or_none(uint32_t item) {
    return item == runtime::kNoItem ? std::nullopt : std::optional<uint32_t>(item);
  }
  plan::Node node(size_t queue) const { return queue < threads_.nodes ? static_cast<plan::Node>(queue) : plan::kUnknownNode; }

  runtime::ThreadNodes threads_;
  std::unique_ptr<std::atomic<uint32_t>[]> expected_;
  runtime::NodeQueues queues_;
  std::unique_ptr<runtime::NodeClaims> claims_;
};

}  // namespace

void bind_node_plan(py::module_& m) {
  py::class_<Claims>(m, "NodeClaims", "Who takes which item on a machine of several nodes; a node is None where it is not known.")
      .def(py::init<const std::vector<std::vector<std::vector<uint32_t>>>&, const std::vector<std::vector<uint32_t>>&,
                    const std::vector<uint32_t>&, bool>(),
           py::arg("queues"), py::arg("distances"), py::arg("expected") = std::vector<uint32_t>{}, py::arg("in_memory") = false)
      .def("arrive", &Claims::arrive, py::arg("node"))
      .def("claim", &Claims::claim, py::arg("step"), py::arg("node"))
      .def("claim_abandoned", &Claims::claim_abandoned, py::arg("step"));
  m.def("node_partition", &node_partition, py::arg("runs"), py::arg("begin"), py::arg("rows"), py::arg("columns"),
        py::arg("element"), py::arg("row_stride") = py::none(), py::arg("rows_are_inputs") = false, py::arg("column_step") = 1,
        py::arg("threads") = 64,
        "How a matrix is cut by nodes. runs: (bytes, node or None) from the begin of the range that holds it; begin and "
        "row_stride: bytes. Items with their tile (row, rows, column, columns) and pieces, whose rows and columns count from "
        "the tile's first.");
}

}  // namespace ort_hina::python
