#include "ort/moe_op.h"

#include <stdexcept>

#include "ort/moe_attributes.h"
#include "ort/tensors.h"
#include "runtime/cpu.h"

namespace ort_hina::ort {
namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

constexpr char kOperator[] = "MoE";

void check_addend(const Ort::ConstKernelInfo& info) {
  int constant = 0;
  info.GetTensorConstantInput(kAddend, &constant);
  if (constant)
    fail("input 3 (addend): expected a value computed at run time, got a constant initializer (windows begin at input 4)");
}

operators::Window read_window(const Ort::ConstKernelInfo& info, size_t index, DataType type) {
  const size_t input = kWindows + index;
  const std::string what = "input " + to_string(input) + " (window " + to_string(index) + ")";
  int constant = 0;
  const auto value = info.GetTensorConstantInput(input, &constant);
  if (!constant) fail(what + ": expected a constant initializer, got a value computed at run time");
  const auto shape = value.GetTensorTypeAndShapeInfo();
  if (shape.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
    fail(what + " is " + type_name(shape.GetElementType()) +
         ", expected uint8: ONNX Runtime may convert floating-point initializers; window_types names the element type");
  return {static_cast<const uint8_t*>(value.GetTensorRawData()), shape.GetElementCount(), type};
}

std::vector<operators::Window> read_windows(const OrtKernelInfo* raw) {
  const Ort::ConstKernelInfo info{raw};
  std::vector<operators::Window> windows;
  for (const DataType type : read_window_types(raw, info.GetInputCount() - kWindows))
    windows.push_back(read_window(info, windows.size(), type));
  return windows;
}

void read_ids(const Ort::ConstValue& ids, const Rows& x, size_t num_experts, operators::MoeInputs* in) {
  in->k = num_experts;
  if (!ids) return;
  const Rows chosen = rows_of(ids, "input 1 (expert_ids)");
  if (chosen.rows != x.rows)
    fail("input 1 (expert_ids): expected " + to_string(x.rows) + " rows as in X " + describe(x.shape) + ", got shape " +
         describe(chosen.shape));
  in->ids_are_64_bit = chosen.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  if (!in->ids_are_64_bit && chosen.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)
    fail(std::string("input 1 (expert_ids) is ") + type_name(chosen.type) + ", expected int32 or int64");
  in->k = chosen.width;
  in->ids = ids.GetTensorRawData();
}

void read_weights(const Ort::ConstValue& weights, const Rows& x, operators::MoeInputs* in) {
  if (!weights) return;
  const Rows weight = rows_of(weights, "input 2 (expert_weights)");
  if (weight.rows != x.rows || weight.width != in->k) {
    const char* why = in->ids ? "as many as expert_ids" : "one for each expert, since expert_ids is absent";
    fail("input 2 (expert_weights): expected " + to_string(x.rows) + " rows of " + to_string(in->k) + " weights (" + why +
         "), got shape " + describe(weight.shape));
  }
  in->weights_type = floating_type(weight.type, "input 2 (expert_weights)");
  in->weights = weights.GetTensorRawData();
}

void read_addend(const Ort::ConstValue& addend, const Rows& x, operators::MoeInputs* in) {
  if (!addend) return;
  const auto info = addend.GetTensorTypeAndShapeInfo();
  const std::string type = type_name(info.GetElementType());
  if (info.GetElementType() != x.type) fail("input 3 (addend) is " + type + ", expected " + type_name(x.type) + " as X");
  if (info.GetShape() != x.shape)
    fail("input 3 (addend): expected the shape of X " + describe(x.shape) + ", got " + describe(info.GetShape()));
  in->addend = addend.GetTensorRawData();
}

// Scratch of one call from the session's own allocator: its arena keeps it for the next layer.
class Scratch {
 public:
  explicit Scratch(OrtKernelContext* context) {
    const Ort::MemoryInfo info = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    Ort::ThrowOnError(Ort::GetApi().KernelContext_GetAllocator(context, info, &allocator_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    release();
    Ort::GetApi().ReleaseAllocator(allocator_);
  }
  // One piece at a time: the next replaces it.
  void* allocate(size_t bytes) {
    release();
    memory_ = allocator_->Alloc(allocator_, bytes + kAlignment);
    if (!memory_) throw std::bad_alloc();
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  static constexpr size_t kAlignment = 64;
  void release() {
    if (memory_) allocator_->Free(allocator_, memory_);
    memory_ = nullptr;
  }
  OrtAllocator* allocator_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace

MoeKernel::MoeKernel(const OrtKernelInfo* raw, const Settings& settings)
    : node_(node_name(kOperator, raw)), threads_(settings.threads) {
  check_addend(Ort::ConstKernelInfo{raw});
  const std::vector<operators::Window> windows = read_windows(raw);
  moe_ = std::make_unique<operators::Moe>(read_moe_attributes(raw), windows, runtime::choose_isa().isa, settings.bf16_compute);
  share_out(raw, windows, settings.numa);
}

// Does nothing where the process runs on one node.
void MoeKernel::share_out(const OrtKernelInfo* info, const std::vector<operators::Window>& windows, NumaWindows* numa) {
  const std::vector<std::vector<plan::StoredMatrix>> matrices = operators::stored_matrices(moe_->config(), windows);
  operators::Placement placement = {{}, &thread_nodes_, threads_};
  bool known = false;
  for (size_t w = 0; w < windows.size(); ++w) {
    placement.maps.push_back(numa->place(info, windows[w].data, windows[w].bytes, matrices[w]));
    known |= !placement.maps.back().runs().empty();
  }
  if (!known) return;
  thread_nodes_ = runtime::thread_nodes(runtime::topology());
  moe_->share_out(windows, placement);
}

OrtStatusPtr MoeKernel::ComputeV2(OrtKernelContext* context) {
  return guarded(node_, [&] { compute(context); });
}

void MoeKernel::compute(OrtKernelContext* raw) const {
  const Ort::KernelContext context(raw);
  const Ort::ConstValue x = context.GetInput(kX);
  const Rows rows = rows_of(x, "input 0 (X)");
  if (rows.width != moe_->config().hidden)
    fail("input 0 (X): expected a last dimension of " + to_string(moe_->config().hidden) + " (hidden_size), got shape " +
         describe(rows.shape));
  operators::MoeInputs in = {};
  in.x = x.GetTensorRawData();
  in.x_type = floating_type(rows.type, "input 0 (X)");
  in.tokens = rows.rows;
  read_ids(context.GetInput(kExpertIds), rows, moe_->config().num_experts, &in);
  read_weights(context.GetInput(kExpertWeights), rows, &in);
  read_addend(context.GetInput(kAddend), rows, &in);
  in.y = context.GetOutput(0, rows.shape).GetTensorMutableRawData();

  Scratch scratch(raw);
  const runtime::Pool pool = {raw, parallel_for, threads_};
  moe_->run(in, pool, [&scratch](size_t bytes) { return scratch.allocate(bytes); });
}

OrtStatusPtr MoeOp::CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
  return guarded(node_name(kOperator, info), [&] { *kernel = new MoeKernel(info, settings_); });
}

// Y has X's type and shape. The C++ wrapper for this would make every output a float. An unnamed unknown dimension cannot
// be handed on, since it would become a wrong -1, and neither can an unknown rank, which reads as no dimensions: then nothing
// is said.
OrtStatusPtr ORT_API_CALL MoeOp::infer_output_shape(const OrtCustomOp*, OrtShapeInferContext* context) {
  const OrtApi& api = Ort::GetApi();
  OrtTensorTypeAndShapeInfo* x = nullptr;  // owned by the context
  if (OrtStatus* status = api.ShapeInferContext_GetInputTypeShape(context, 0, &x)) return status;
  size_t rank = 0;
  if (OrtStatus* status = api.GetDimensionsCount(x, &rank)) return status;
  if (rank == 0) return nullptr;
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  if (OrtStatus* status = api.GetDimensions(x, dims.data(), rank)) return status;
  if (OrtStatus* status = api.GetSymbolicDimensions(x, names.data(), rank)) return status;
  for (size_t i = 0; i < rank; ++i)
    if (dims[i] < 0 && !*names[i]) return nullptr;
  return api.ShapeInferContext_SetOutputTypeShape(context, 0, x);
}

}  // namespace ort_hina::ort
