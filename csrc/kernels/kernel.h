// The contract of every kernel: no allocation, no threads, no state; pointers need no alignment unless it is said; nothing
// outside the described elements is read or written.
#pragma once
#include "kernels/attention.h"
#include "kernels/route.h"
#include "kernels/types.h"

namespace ort_hina::kernels {

// A matmul's activations are f32 rows, `lda` elements apart; or bf16 in blocks of kBlockTokens tokens, padded with zeros to
// `padded_inputs(k)` inputs. Block b begins at element 16·b·lda, 64-byte aligned. A block of at least `lanes_from` tokens
// lies in lanes: input pair by input pair, 16 tokens beside each other, so that one vector (or a row of an AMX tile) holds the
// pair of all of them: input i of token t at [(i/2)·32 + 2·t + i%2], absent tokens 0. A smaller block lies in rows:
// [t·lda + i]. lda is a multiple of kBlockInputs.
constexpr size_t kBlockTokens = 16;
constexpr size_t kBlockInputs = 32;
constexpr size_t padded_inputs(size_t k) { return (k + kBlockInputs - 1) / kBlockInputs * kBlockInputs; }
// For `lanes_from`: every block lies in rows, so token t is at [t·lda].
constexpr uint32_t kRowsOnly = kBlockTokens + 1;

// C[m,n] = A[m,k] · W, where W maps k inputs to n outputs and lies at `w` with row distance `ldw` (elements):
// [N,K]: element (k,n) at w[n*ldw + k]; [K,N]: at w[k*ldw + n].
struct MatmulArgs {
  const void* a;  // float or bf16, as the kernel wants
  size_t lda;     // elements
  const void* w;
  size_t ldw;
  float* c;
  size_t ldc;
  size_t m, n, k;
  void* scratch;  // MatmulKernel::scratch_bytes(m, n), 64-byte aligned
  // Where the caller's next matmul of this shape begins, if that is known: its first weights may be prefetched. Or null.
  const void* next_w;
  // Leave the blocks that lie in lanes as they are computed: output n of token t of block b at c[16·b·ldc + 16·n + t], what
  // absent tokens have there being unspecified (16·ldc elements of c belong to each such block). Otherwise, and for blocks in
  // rows, c[token·ldc + n]. Only kernels with `lanes_result`.
  bool c_lanes;
};

// What a caller may cut without changing any output's bits. A kernel that is cut along N owns whole outputs; one that
// is cut along K streams whole weight rows and leaves partial sums, one set for each chunk of `k_chunk` inputs.
enum class Cut : uint8_t { kN, kK };

// What a call costs, in cycles: n·k·(passes·per_pass + tokens·per_mac), passes = ceil(m / pass_tokens), tokens = m rounded
// up to a multiple of token_step.
struct Cost {
  float per_pass;
  float per_mac;
  uint32_t pass_tokens;
  uint32_t token_step = 1;
};

struct MatmulKernel {
  const char* name;  // <op>_<activations>_<weights>_<layout>_<form>_<isa>
  Isa isa;
  DataType activations;  // kF32: rows; kBF16: blocks
  DataType weights;
  Layout layout;
  Cut cut;
  uint32_t n_step;      // a block of N is a multiple of this, the last one excepted (cut along N)
  uint32_t n_most;      // outputs whose weights are best given at once: they and what is fetched ahead share L2
  uint32_t k_chunk;     // cut along K; a multiple of kBlockInputs where activations are blocks
  uint32_t lanes_from;  // of activations in blocks
  bool lanes_result;    // see MatmulArgs::c_lanes
  // Scratch: `fixed_scratch` bytes, a panel of weights of this many inputs × n outputs of this many bytes, and (`lanes_scratch`)
  // the sums of all tokens in lanes.
  uint32_t panel_k;
  uint32_t panel_element;
  uint32_t fixed_scratch;
  bool lanes_scratch;
  Cost cost;
  void (*run)(const MatmulArgs&);

  size_t scratch_bytes(size_t m, size_t n) const {
    const size_t outputs = (n + n_step - 1) / n_step * n_step;
    const size_t tokens = lanes_scratch ? (m + kBlockTokens - 1) / kBlockTokens * kBlockTokens : 0;
    return fixed_scratch + (size_t{panel_k} * panel_element + tokens * sizeof(float)) * outputs;
  }
};

// h[r,i] = activation(gate[r, i*step] + gate_bias[i]) * (up[r, i*step] + up_bias[i]); `up` null: plain FFN.
struct ActivateArgs {
  const float* gate;
  const float* up;
  size_t ld, step;
  const float* gate_bias;  // null: none
  const float* up_bias;
  float* h;
  size_t ldh;
  size_t rows, n;
  ActivationSpec activation;
};

// The same for one block of 16 tokens in lanes (MatmulArgs::c_lanes), straight into the next matmul's block in lanes: gate of
// unit i at gate[16·i·step], h of unit i at h[(i/2)·32 + 2·t + i%2]; absent tokens and units from n to `padded` get 0.
struct ActivateLanesArgs {
  const float* gate;
  const float* up;
  size_t step;
  const float* gate_bias;
  const float* up_bias;
  uint16_t* h;
  size_t tokens;     // of 16
  size_t n, padded;  // padded even, at least n
  ActivationSpec activation;
};

// Inputs [0, n) of up to 16 tokens, rounded to bf16 (to nearest even), into a block: in lanes or in rows, at the place of the
// first of these inputs. Inputs from n to `padded`, and absent tokens in lanes, get 0.
struct PackArgs {
  const void* const* rows;
  DataType type;
  const float* scales;  // of each token; null: 1
  size_t count;         // tokens
  size_t n, padded;     // padded even, at least n
  uint16_t* to;
  size_t ld;  // of rows
  bool lanes;
};

// One expert's answer for one token: weight * (Σ_c row[c*chunk_distance + i] + bias[i]).
struct CombineTerm {
  const float* row;
  const float* bias;  // null: none
  float weight;
  uint32_t chunks;
  size_t chunk_distance;
};

// out[i] = Σ_j terms[j][i] in order of j, rounded to `out_type` once.
struct CombineArgs {
  const CombineTerm* terms;
  size_t count;
  size_t n;
  void* out;
  DataType out_type;
};

// Everything of one instruction level that is not a matmul.
struct VectorOps {
  Isa isa;
  void (*activate)(const ActivateArgs&);
  // Null at levels without kernels that take bf16 blocks.
  void (*activate_lanes)(const ActivateLanesArgs&);
  void (*pack)(const PackArgs&);
  void (*combine)(const CombineArgs&);
  // to[i] = scale * widen(from[i])
  void (*widen)(const void* from, DataType type, size_t n, float scale, float* to);
  // sum[i] = Σ_c parts[c*distance + i]
  void (*sum_chunks)(const float* parts, size_t chunks, size_t distance, size_t n, float* sum);
  void (*route)(const RouteArgs&, const RoutingRule&);
  void (*attend)(const AttendArgs&);
  // As many f32 multiply-adds as the registers can keep in flight, `rounds` times; returns how many operations that were
  // (a multiply-add is two). The yardstick for arithmetic.
  double (*multiply_adds)(size_t rounds);
  // The same with bf16 products (vdpbf16ps). Null where the level has none.
  double (*bf16_multiply_adds)(size_t rounds);
};

// The calling thread's AMX tile configuration, which kernels overwrite: whoever calls them saves it before and restores it
// after, since others (MLAS) set theirs once in a thread's life. 64 bytes.
struct TileState {
  void (*save)(void* configuration);
  void (*restore)(const void* configuration);
};

}  // namespace ort_hina::kernels
