#include "ort/moe_op.h"

#include <stdexcept>

#include "ort/moe_attributes.h"
#include "runtime/cpu.h"

namespace ort_hina::ort {
namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

const char* type_name(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return "float";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return "float16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return "bfloat16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return "double";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return "int32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return "int64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16: return "int16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return "int8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return "uint8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return "uint16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32: return "uint32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64: return "uint64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return "bool";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: return "string";
    default: return "of another element type";
  }
}

DataType floating_type(ONNXTensorElementDataType type, const std::string& what) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return DataType::kF32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DataType::kF16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DataType::kBF16;
    default: fail(what + " is " + type_name(type) + ", expected float, float16 or bfloat16");
  }
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + to_string(shape[i]);
  return text + ")";
}

std::string node_name(const Ort::ConstKernelInfo& info) {
  const std::string name = info.GetNodeName();
  return "ort_hina MoE node '" + name + "': ";
}

void check_addend(const Ort::ConstKernelInfo& info) {
  int constant = 0;
  info.GetTensorConstantInput(kAddend, &constant);
  if (constant)
    fail("input 3 (addend): expected a value computed at run time, got a constant initializer (windows begin at input 4)");
}

std::vector<operators::Window> read_windows(const Ort::ConstKernelInfo& info) {
  std::vector<operators::Window> windows;
  for (size_t i = kWindows; i < info.GetInputCount(); ++i) {
    const std::string what = "input " + to_string(i) + " (window " + to_string(i - kWindows) + ")";
    int constant = 0;
    const auto value = info.GetTensorConstantInput(i, &constant);
    if (!constant) fail(what + ": expected a constant initializer, got a value computed at run time");
    const auto shape = value.GetTensorTypeAndShapeInfo();
    const DataType type = floating_type(shape.GetElementType(), what);
    windows.push_back({static_cast<const uint8_t*>(value.GetTensorRawData()), shape.GetElementCount() * size_of(type), type});
  }
  return windows;
}

// Rows and the last dimension of a rank 2 or 3 input.
struct Rows {
  std::vector<int64_t> shape;
  size_t rows, width;
  ONNXTensorElementDataType type;
};

Rows rows_of(const Ort::ConstValue& value, const char* what) {
  const auto info = value.GetTensorTypeAndShapeInfo();
  Rows r = {info.GetShape(), 1, 0, info.GetElementType()};
  if (r.shape.size() != 2 && r.shape.size() != 3)
    fail(std::string(what) + ": expected rank 2 or 3, got shape " + describe(r.shape));
  for (size_t i = 0; i + 1 < r.shape.size(); ++i) r.rows *= static_cast<size_t>(r.shape[i]);
  r.width = static_cast<size_t>(r.shape.back());
  return r;
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

// The region over ONNX Runtime's own pool.
struct PoolBody {
  void (*body)(void*, size_t);
  void* data;
};

void parallel_for(void* context, size_t count, void (*body)(void*, size_t), void* data) {
  PoolBody call = {body, data};
  auto run = [](void* raw, size_t i) {
    const PoolBody* call = static_cast<const PoolBody*>(raw);
    call->body(call->data, i);
  };
  Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(static_cast<const OrtKernelContext*>(context), run, count, 0, &call));
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

OrtStatusPtr status_of(const std::string& node, const std::exception& error) {
  const OrtErrorCode code =
      dynamic_cast<const std::invalid_argument*>(&error) ? ORT_INVALID_ARGUMENT : ORT_RUNTIME_EXCEPTION;
  return Ort::GetApi().CreateStatus(code, (node + error.what()).c_str());
}

}  // namespace

MoeKernel::MoeKernel(const OrtKernelInfo* raw, const Settings& settings)
    : node_(node_name(Ort::ConstKernelInfo{raw})), threads_(settings.threads) {
  const Ort::ConstKernelInfo info{raw};
  check_addend(info);
  moe_ = std::make_unique<operators::Moe>(read_moe_attributes(raw), read_windows(info), runtime::choose_isa().isa,
                                          settings.bf16_compute);
}

OrtStatusPtr MoeKernel::ComputeV2(OrtKernelContext* context) {
  try {
    compute(context);
    return nullptr;
  } catch (const std::exception& error) {
    return status_of(node_, error);
  }
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
  try {
    *kernel = new MoeKernel(info, settings_);
    return nullptr;
  } catch (const std::exception& error) {
    return status_of(node_name(Ort::ConstKernelInfo{info}), error);
  }
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
