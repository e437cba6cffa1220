// This level's rows of the table. ORT_HINA_ISA_NAME and the costs are set by the including unit. Included inside an
// ISA namespace, last.

#define ORT_HINA_ROWS(TYPE, TYPE_NAME)                                                                               \
  {"matmul_f32_" TYPE_NAME "_nk_dot_" ORT_HINA_ISA_NAME, kIsa, DataType::kF32, TYPE, Layout::kNK, Cut::kN, 4, UINT32_MAX, 0, 0, \
   false, 0, 0, 0, false, kDotCost, matmul_dot<TYPE>},                                                               \
  {"matmul_f32_" TYPE_NAME "_nk_panel_" ORT_HINA_ISA_NAME, kIsa, DataType::kF32, TYPE, Layout::kNK, Cut::kN, kPanelN, \
   kPanelOutputs, 0, 0, false, kPanelK, sizeof(float), 0, false, kPanelNKCost, matmul_panel<TYPE, Layout::kNK>},                    \
  {"matmul_f32_" TYPE_NAME "_kn_stream_" ORT_HINA_ISA_NAME, kIsa, DataType::kF32, TYPE, Layout::kKN, Cut::kK, 1,      \
   UINT32_MAX, kStreamChunk, 0, false, 0, 0, 0, false, kStreamCost, matmul_stream<TYPE>},                                        \
  {"matmul_f32_" TYPE_NAME "_kn_panel_" ORT_HINA_ISA_NAME, kIsa, DataType::kF32, TYPE, Layout::kKN, Cut::kN, kPanelN, \
   kPanelOutputs, 0, 0, false, kPanelK, sizeof(float), 0, false, kPanelKNCost, matmul_panel<TYPE, Layout::kKN>}

const MatmulKernel kKernels[] = {
    ORT_HINA_ROWS(DataType::kF32, "f32"),
    ORT_HINA_ROWS(DataType::kF16, "f16"),
    ORT_HINA_ROWS(DataType::kBF16, "bf16"),
};

const VectorOps kOps = {kIsa, activate, nullptr, nullptr, combine, widen, sum_chunks, route, attend_float, multiply_adds, nullptr};
