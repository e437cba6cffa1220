#include "operators/node_matmul.h"

#include <algorithm>
#include <cstring>

namespace ort_hina::operators {
namespace {

using kernels::kBlockInputs;
using kernels::kBlockTokens;
using plan::Piece;

constexpr size_t kLine = 64;

// What an item keeps in its scratch; addresses may be counted from 0, when only the size matters.
struct Scratch {
  float* sums;         // of a piece whose outputs do not lie beside each other
  uint8_t* rows;       // weight rows that were copied together
  uint8_t* inputs;     // those that were copied together
  uint8_t* of_kernel;
  size_t bytes;
  Scratch(const plan::NodePartition& partition, const kernels::MatmulKernel& kernel, size_t tokens, uint8_t* begin) {
    const bool inputs_are_rows = partition.rows_are_inputs();
    const size_t outputs = inputs_are_rows ? partition.most_columns() : partition.most_rows();
    size_t next = reinterpret_cast<uintptr_t>(begin);
    const auto take = [&next](size_t size) {
      const size_t at = next;
      next += align(size);
      return at;
    };
    sums = reinterpret_cast<float*>(take(tokens * outputs * sizeof(float)));
    rows = reinterpret_cast<uint8_t*>(take(partition.most_listed_bytes()));
    inputs = reinterpret_cast<uint8_t*>(take(taken_inputs(partition, kernel, tokens)));
    of_kernel = reinterpret_cast<uint8_t*>(take(kernel.scratch_bytes(tokens, outputs)));
    bytes = next - reinterpret_cast<uintptr_t>(begin);
  }

 private:
  static size_t taken_inputs(const plan::NodePartition& partition, const kernels::MatmulKernel& kernel, size_t tokens) {
    // Where columns are inputs of 16 bits, they are cut between blocks.
    const bool in_place = kernel.activations == DataType::kF32 || size_of(kernel.weights) == 2;
    if (!partition.rows_are_inputs() && in_place) return 0;
    const size_t most = partition.rows_are_inputs() ? partition.most_rows() : partition.most_columns();
    return activations_of(kernel, most).bytes(tokens);
  }
};

class Item {
 public:
  Item(const NodeMatmul& matmul, size_t item, uint8_t* scratch)
      : m_(matmul),
        item_(matmul.partition->items()[item]),
        tile_(matmul.partition->tile(item_.tile)),
        scratch_(*matmul.partition, *matmul.kernel, matmul.tokens, scratch) {}

  void run() const {
    if (m_.partition->rows_are_inputs()) run_rows_of_inputs();
    else run_rows_of_outputs();
  }

 private:
  const Piece* begin() const { return m_.pool->begin(item_.pieces); }
  const Piece* end() const { return m_.pool->end(item_.pieces); }

  const uint8_t* weight(size_t row, size_t column) const {
    return m_.weights->data + (row * m_.weights->ld + column) * size_of(m_.weights->type);
  }

  size_t row_of(const Piece& piece, size_t i) const {
    return piece.step ? piece.row + i * piece.step : m_.pool->listed(piece)[i];
  }

  // The piece's weights as rows at equal distances.
  void set_weights(const Piece& piece, kernels::MatmulArgs* args) const {
    const size_t row = tile_.row + piece.row, column = tile_.begin + piece.begin;
    args->w = weight(row, column);
    args->ldw = piece.step * m_.weights->ld;
    const Piece* const next = &piece + 1;
    const bool alike = next != end() && next->step == piece.step && next->rows == piece.rows &&
                       next->end - next->begin == piece.end - piece.begin;
    if (alike && piece.step) args->next_w = weight(tile_.row + next->row, tile_.begin + next->begin);
    if (piece.step) return;
    copy_rows(piece);
    args->w = scratch_.rows;
    args->ldw = piece.end - piece.begin;
  }

  // Some inputs × the weights that args names. Inputs that do not lie together, in whole blocks, are copied together first.
  void multiply(kernels::MatmulArgs args, const InputChoice& chosen, size_t n, float* c, size_t ldc) const {
    const size_t end = chosen.first + chosen.count;
    const bool whole_blocks = chosen.first % kBlockInputs == 0 && (end % kBlockInputs == 0 || end == inputs());
    if (chosen.step == 1 && (m_.inputs.type == DataType::kF32 || whole_blocks))
      return multiply_in_place(args, chosen.first, n, chosen.count, c, ldc);
    const Activations taken = activations_of(*m_.kernel, chosen.count);
    take_inputs(m_.base, m_.inputs, scratch_.inputs, taken, m_.tokens, chosen);
    args.a = scratch_.inputs;
    args.lda = taken.stride;
    run_kernel(args, m_.tokens, n, chosen.count, c, ldc);
  }

  size_t inputs() const { return m_.partition->rows_are_inputs() ? m_.partition->rows() : m_.partition->columns(); }

  // A last block of another form than the others begins elsewhere in its rows, so it is done by itself.
  void multiply_in_place(kernels::MatmulArgs args, size_t first, size_t n, size_t k, float* c, size_t ldc) const {
    const size_t last = (m_.tokens - 1) / kBlockTokens;
    const bool uniform = first == 0 || m_.inputs.in_lanes(0, m_.tokens) == m_.inputs.in_lanes(last, m_.tokens);
    const size_t tokens = uniform ? m_.tokens : last * kBlockTokens;
    args.lda = m_.inputs.stride;
    for (size_t token = 0; token < m_.tokens; token += tokens) {
      args.a = m_.base + m_.inputs.place(token, first, m_.tokens);
      run_kernel(args, std::min(tokens, m_.tokens - token), n, k, c + token * ldc, ldc);
    }
  }

  // While a row is copied, the next one is fetched line by line.
  void copy_rows(const Piece& piece) const {
    const size_t bytes = (piece.end - piece.begin) * size_of(m_.weights->type);
    const uint8_t* from = weight(tile_.row + row_of(piece, 0), tile_.begin + piece.begin);
    uint8_t* to = scratch_.rows;
    for (size_t r = 0; r < piece.rows; ++r, to += bytes) {
      const uint8_t* const next = weight(tile_.row + row_of(piece, std::min<size_t>(r + 1, piece.rows - 1)), tile_.begin + piece.begin);
      for (size_t at = 0; at < bytes; at += kLine) {
        __builtin_prefetch(next + at, 0, 2);
        std::memcpy(to + at, from + at, std::min(kLine, bytes - at));
      }
      from = next;
    }
  }

  void run_kernel(kernels::MatmulArgs args, size_t tokens, size_t n, size_t k, float* c, size_t ldc) const {
    args.c = c, args.ldc = ldc;
    args.m = tokens, args.n = n, args.k = k;
    args.scratch = scratch_.of_kernel;
    m_.kernel->run(args);
  }

  // ---- Rows are outputs

  void run_rows_of_outputs() const {
    for (const Piece* piece = begin(); piece != end(); ++piece) {
      kernels::MatmulArgs args = {};
      set_weights(*piece, &args);
      float* const to = m_.sums + piece->rank * m_.distance + tile_.row;
      const size_t outputs = piece->rows, inputs = piece->end - piece->begin;
      const InputChoice chosen = {piece->begin, 1, inputs, nullptr};
      const bool direct = piece->first && piece->step == 1;
      float* const sums = direct ? to + piece->row : scratch_.sums;
      multiply(args, chosen, outputs, sums, direct ? m_.ld : outputs);
      if (!direct) scatter(*piece, to);
      if (piece->first && piece->rank == 0) clear_absent(*piece);
    }
  }

  void scatter(const Piece& piece, float* to) const {
    for (size_t t = 0; t < m_.tokens; ++t, to += m_.ld) {
      const float* const sums = scratch_.sums + t * piece.rows;
      if (piece.first) for (size_t i = 0; i < piece.rows; ++i) to[row_of(piece, i)] = sums[i];
      else for (size_t i = 0; i < piece.rows; ++i) to[row_of(piece, i)] += sums[i];
    }
  }

  // The partial sums that these rows do not have.
  void clear_absent(const Piece& piece) const {
    for (size_t part = piece.ranks; part < m_.parts; ++part)
      for (size_t t = 0; t < m_.tokens; ++t) {
        float* const to = m_.sums + part * m_.distance + t * m_.ld + tile_.row;
        for (size_t i = 0; i < piece.rows; ++i) to[row_of(piece, i)] = 0.0f;
      }
  }

  // ---- Rows are inputs

  void run_rows_of_inputs() const {
    float* const to = m_.sums + (tile_.part + begin()->rank) * m_.distance + tile_.begin;
    const bool whole = end() - begin() == 1 && begin()->end - begin()->begin == tile_.columns;
    if (!whole) clear(to);
    for (const Piece* piece = begin(); piece != end(); ++piece) {
      if (whole) {
        add_inputs(*piece, to, m_.ld);
      } else {
        add_inputs(*piece, scratch_.sums, piece->end - piece->begin);
        add(to + piece->begin, piece->end - piece->begin);
      }
    }
    if (begin()->rank == 0) clear_absent();
  }

  void add_inputs(const Piece& piece, float* c, size_t ldc) const {
    kernels::MatmulArgs args = {};
    set_weights(piece, &args);
    const size_t first = tile_.row + (piece.step ? piece.row : 0);
    multiply(args, {first, piece.step, piece.rows, m_.pool->listed(piece)}, piece.end - piece.begin, c, ldc);
  }

  void clear(float* to) const {
    for (size_t t = 0; t < m_.tokens; ++t) std::fill_n(to + t * m_.ld, tile_.columns, 0.0f);
  }

  void add(float* to, size_t outputs) const {
    for (size_t t = 0; t < m_.tokens; ++t)
      for (size_t n = 0; n < outputs; ++n) to[t * m_.ld + n] += scratch_.sums[t * outputs + n];
  }

  // The partial sums that this tile, and all of this matrix, do not have.
  void clear_absent() const {
    for (size_t part = begin()->ranks; part < m_.partition->ranks(); ++part)
      clear(m_.sums + (tile_.part + part) * m_.distance + tile_.begin);
    if (tile_.row > 0) return;
    for (size_t part = m_.partition->parts(); part < m_.parts; ++part) clear(m_.sums + part * m_.distance + tile_.begin);
  }

  const NodeMatmul& m_;
  const plan::NodePartition::Item item_;
  const plan::NodePartition::Tile tile_;
  const Scratch scratch_;
};

}  // namespace

size_t node_scratch_bytes(const plan::NodePartition& partition, const kernels::MatmulKernel& kernel, size_t tokens) {
  return Scratch(partition, kernel, tokens, nullptr).bytes;
}

void run_node_item(const NodeMatmul& matmul, size_t item, uint8_t* scratch) { Item(matmul, item, scratch).run(); }

}  // namespace ort_hina::operators
