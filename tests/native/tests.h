// What each file of tests offers.
#pragma once
#include "kernels/kernel.h"
#include "outcome.h"

namespace ort_hina::native_tests {

// All that is asked of one kernel.
void test_matmul(const kernels::MatmulKernel& kernel, Random& random, Outcome& outcome);

// One test for each kernel, each operation, ... of this level.
void add_matmul_tests(Isa level, Tests& tests);
void add_activation_tests(Isa level, Tests& tests);
void add_pack_tests(Isa level, Tests& tests);
void add_combine_tests(Isa level, Tests& tests);
void add_router_tests(Isa level, Tests& tests);
void add_attention_tests(Isa level, Tests& tests);
void add_amx_tests(Tests& tests);
void add_emulator_tests(Tests& tests);

// What needs no level.
void add_detection_tests(Tests& tests);
void add_numa_tests(Tests& tests);
void add_self_checks(Tests& tests);

// `shapes` random matmuls, each on 1 to 64 threads at once, which have operands and a kernel of these levels of their own.
Outcome stress(const std::vector<Isa>& levels, size_t shapes, Random& random);

}  // namespace ort_hina::native_tests
