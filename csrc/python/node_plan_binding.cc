#include "plan/node_partition.h"
#include "python/bindings.h"

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
                        const std::optional<uint64_t>& row_stride, bool rows_are_inputs, uint32_t column_step) {
  const plan::StoredMatrix matrix = {begin, rows, columns, element, row_stride.value_or(uint64_t{columns} * element)};
  if (element == 0 || column_step == 0) throw std::invalid_argument("element and column_step: expected at least 1");
  if (matrix.row_stride < matrix.row_bytes()) throw std::invalid_argument("row_stride: expected at least a row's bytes");
  const plan::PageMap map = page_map(runs);
  if (rows && columns && map.bytes() < matrix.row_begin(rows - 1) + matrix.row_bytes())
    throw std::invalid_argument("page map: expected one that covers the matrix");
  plan::PiecePool pool;
  const plan::NodePartition partition(
      map, matrix, {rows_are_inputs ? plan::RowsAre::kInputs : plan::RowsAre::kOutputs, column_step}, &pool);
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

}  // namespace

void bind_node_plan(py::module_& m) {
  m.def("node_partition", &node_partition, py::arg("runs"), py::arg("begin"), py::arg("rows"), py::arg("columns"),
        py::arg("element"), py::arg("row_stride") = py::none(), py::arg("rows_are_inputs") = false, py::arg("column_step") = 1,
        "How a matrix is cut by nodes. runs: (bytes, node or None) from the begin of the range that holds it; begin and "
        "row_stride: bytes. Items with their tile (row, rows, column, columns) and pieces, whose rows and columns count from "
        "the tile's first.");
}

}  // namespace ort_hina::python
