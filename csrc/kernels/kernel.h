// The contract of every kernel: no allocation, no threads, no state; pointers need no alignment; nothing outside the
// described elements is read or written.
#pragma once
#include "kernels/types.h"

namespace ort_hina::kernels {

// C[m,n] (+)= A[m,k] · W, where W maps k inputs to n outputs and lies at `w` with row distance `ldw` (elements):
// [N,K]: element (k,n) at w[n*ldw + k]; [K,N]: at w[k*ldw + n].
struct MatmulArgs {
  const float* a;
  size_t lda;
  const void* w;
  size_t ldw;
  float* c;
  size_t ldc;
  size_t m, n, k;
  float* scratch;  // MatmulKernel::scratch_floats(n) of them, 64-byte aligned
  // Where the caller's next matmul of this shape begins, if that is known: its first weights may be prefetched. Or null.
  const void* next_w;
};

// What a caller may cut without changing any output's bits. A kernel that is cut along N owns whole outputs; one that
// is cut along K streams whole weight rows and leaves partial sums, one set for each chunk of `k_chunk` inputs.
enum class Cut : uint8_t { kN, kK };

// What a call costs, in cycles: n·k·(passes·per_pass + m·per_mac), passes = ceil(m / pass_tokens).
struct Cost {
  float per_pass;
  float per_mac;
  uint32_t pass_tokens;
};

struct MatmulKernel {
  const char* name;  // <op>_<activations>_<weights>_<layout>_<form>_<isa>
  Isa isa;
  DataType weights;
  Layout layout;
  Cut cut;
  uint32_t n_step;   // a block of N is a multiple of this, the last one excepted (cut along N)
  uint32_t k_chunk;  // cut along K
  uint32_t panel_k;  // depth of the weight panel kept in scratch; 0: no scratch
  Cost cost;
  void (*run)(const MatmulArgs&);

  size_t scratch_floats(size_t n) const { return panel_k ? panel_k * ((n + n_step - 1) / n_step * n_step) : 0; }
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
  void (*combine)(const CombineArgs&);
  // to[i] = scale * widen(from[i])
  void (*widen)(const void* from, DataType type, size_t n, float scale, float* to);
  // sum[i] = Σ_c parts[c*distance + i]
  void (*sum_chunks)(const float* parts, size_t chunks, size_t distance, size_t n, float* sum);
  // As many f32 multiply-adds as the registers can keep in flight, `rounds` times; returns how many operations that were
  // (a multiply-add is two). The yardstick for arithmetic.
  double (*multiply_adds)(size_t rounds);
};

}  // namespace ort_hina::kernels
