#include "ops/cuda/vendor/cudnn_graph.h"

#include "base/error.h"
#include "ops/cuda/vendor/cudnn_library.h"

namespace nmoe::cuda {
namespace {

constexpr int64_t kAlignment = 16;  // bytes, of every tensor's memory

CudnnDescriptor make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  NMOE_CUDNN_CHECK(cudnn().create_descriptor(type, &descriptor));
  return CudnnDescriptor(descriptor);
}

// The tag of a value's type in cuDNN's calls.
template <class T>
constexpr cudnnBackendAttributeType_t kTag = CUDNN_TYPE_VOID_PTR;
template <>
constexpr cudnnBackendAttributeType_t kTag<int64_t> = CUDNN_TYPE_INT64;
template <>
constexpr cudnnBackendAttributeType_t kTag<bool> = CUDNN_TYPE_BOOLEAN;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnReduceTensorOp_t> = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;
template <>
constexpr cudnnBackendAttributeType_t kTag<cudnnHandle_t> = CUDNN_TYPE_HANDLE;

template <class T>
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, std::span<const T> values) {
  NMOE_CUDNN_CHECK(
      cudnn().set_attribute(descriptor.get(), name, kTag<T>, static_cast<int64_t>(values.size()), values.data()));
}
template <class T>
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, T value) {
  set(descriptor, name, std::span<const T>(&value, 1));
}
void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, const CudnnDims& dims) {
  set(descriptor, name, std::span<const int64_t>(dims));
}
// Descriptors are void*, as memory is.
void set_descriptor(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
                    cudnnBackendDescriptor_t value) {
  NMOE_CUDNN_CHECK(cudnn().set_attribute(descriptor.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value));
}
void finalize(const CudnnDescriptor& descriptor) { NMOE_CUDNN_CHECK(cudnn().finalize(descriptor.get())); }

std::vector<CudnnDescriptor> engine_configs(const CudnnDescriptor& graph) {
  const CudnnDescriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_descriptor(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.get());
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  if (cudnn().finalize(heuristic.get()) != CUDNN_STATUS_SUCCESS) return {};  // how it says that there are none
  int64_t count = 0;
  NMOE_CUDNN_CHECK(cudnn().get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         0, &count, nullptr));
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (int64_t i = 0; i < count; ++i) {
    configs.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    pointers.push_back(configs.back().get());
  }
  NMOE_CUDNN_CHECK(cudnn().get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         count, &count, pointers.data()));
  configs.resize(static_cast<size_t>(count));
  return configs;
}

bool is_deterministic(const CudnnDescriptor& config) {
  const CudnnDescriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t pointer = engine.get();
  int64_t count = 0;
  NMOE_CUDNN_CHECK(cudnn().get_attribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &count, &pointer));
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  NMOE_CUDNN_CHECK(cudnn().get_attribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                         static_cast<int64_t>(notes.size()), &count, notes.data()));
  for (int64_t i = 0; i < count; ++i) {
    if (notes[static_cast<size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  }
  return true;
}

}  // namespace

void DestroyCudnnDescriptor::operator()(void* descriptor) const noexcept { cudnn().destroy_descriptor(descriptor); }

CudnnDims cudnn_packed(const CudnnDims& dims) { return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}; }

void CudnnPlan::run(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [tensor, memory] : bindings) {
    ids.push_back(tensor.id);
    pointers.push_back(const_cast<void*>(memory));
  }
  for (const auto& [id, value] : scalars_) {
    ids.push_back(id);
    pointers.push_back(const_cast<float*>(&value));
  }
  const CudnnDescriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span<const int64_t>(ids));
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, std::span<void* const>(pointers));
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
  finalize(pack);
  NMOE_CUDNN_CHECK(cudnn().execute(handle, plan_.get(), pack.get()));
}

CudnnTensor CudnnGraph::add_tensor(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides,
                                   bool is_virtual, bool is_scalar) {
  CudnnDescriptor tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int64_t id = next_id_++;
  set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  set(tensor, CUDNN_ATTR_TENSOR_STRIDES, strides);
  set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, is_scalar);
  finalize(tensor);
  kept_.push_back(std::move(tensor));
  return {id, kept_.back().get(), type, dims, strides};
}

CudnnTensor CudnnGraph::memory(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
  return add_tensor(type, dims, strides, /*is_virtual=*/false, /*is_scalar=*/false);
}

CudnnTensor CudnnGraph::scalar(float value) {
  const CudnnTensor tensor =
      add_tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, /*is_virtual=*/false, /*is_scalar=*/true);
  scalars_.emplace_back(tensor.id, value);
  return tensor;
}

void CudnnGraph::add_operation(CudnnDescriptor kind, CudnnDescriptor operation) {
  finalize(operation);
  kept_.push_back(std::move(kind));
  operations_.push_back(std::move(operation));
}

void CudnnGraph::add_pointwise(const Pointwise& p) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(kind, CUDNN_ATTR_POINTWISE_MODE, p.mode);
  set(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, p.compute);
  if (p.axis >= 0) set(kind, CUDNN_ATTR_POINTWISE_AXIS, p.axis);
  finalize(kind);
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind.get());
  set_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p.x->descriptor);
  if (p.b != nullptr) set_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p.b->descriptor);
  if (p.t != nullptr) set_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p.t->descriptor);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p.y->descriptor);
  add_operation(std::move(kind), std::move(operation));
}

CudnnTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                                  cudnnDataType_t type) {
  const CudnnTensor y = add_virtual(type, x.dims);
  add_pointwise({mode, type == CUDNN_DATA_BFLOAT16 ? CUDNN_DATA_FLOAT : type, &x, &b, nullptr, &y, -1});
  return y;
}

void CudnnGraph::pointwise_into(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                                const CudnnTensor& y) {
  add_pointwise({mode, CUDNN_DATA_FLOAT, &x, &b, nullptr, &y, -1});
}

CudnnTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x) {
  const CudnnTensor y = add_virtual(CUDNN_DATA_FLOAT, x.dims);
  add_pointwise({mode, CUDNN_DATA_FLOAT, &x, nullptr, nullptr, &y, -1});
  return y;
}

CudnnTensor CudnnGraph::select(const CudnnTensor& x, const CudnnTensor& otherwise, const CudnnTensor& condition) {
  const CudnnTensor y = add_virtual(CUDNN_DATA_FLOAT, x.dims);
  add_pointwise({CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, &x, &otherwise, &condition, &y, -1});
  return y;
}

CudnnTensor CudnnGraph::index(const CudnnTensor& x, int64_t axis) {
  const CudnnTensor y = add_virtual(CUDNN_DATA_INT32, x.dims);
  add_pointwise({CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, &x, nullptr, nullptr, &y, axis});
  return y;
}

CudnnTensor CudnnGraph::multiply(const CudnnTensor& a, const CudnnTensor& b, cudnnDataType_t type) {
  const CudnnTensor c = add_virtual(type, {a.dims[0], a.dims[1], a.dims[2], b.dims[3]});
  multiply_into(a, b, c);
  return c;
}

void CudnnGraph::multiply_into(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(kind);
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind.get());
  set_descriptor(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
  add_operation(std::move(kind), std::move(operation));
}

CudnnTensor CudnnGraph::reduce(cudnnReduceTensorOp_t operation, const CudnnTensor& x, const CudnnDims& dims) {
  const CudnnTensor y = add_virtual(CUDNN_DATA_FLOAT, dims);
  reduce_into(operation, x, y);
  return y;
}

void CudnnGraph::reduce_into(cudnnReduceTensorOp_t operation, const CudnnTensor& x, const CudnnTensor& y) {
  CudnnDescriptor kind = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(kind, CUDNN_ATTR_REDUCTION_OPERATOR, operation);
  set(kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  finalize(kind);
  CudnnDescriptor node = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_descriptor(node, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind.get());
  set_descriptor(node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  set_descriptor(node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  add_operation(std::move(kind), std::move(node));
}

CudnnTensor CudnnGraph::transpose(const CudnnTensor& x) {
  CudnnDims dims = x.dims, strides = x.strides;
  std::swap(dims[2], dims[3]);
  std::swap(strides[2], strides[3]);
  const CudnnTensor y = add_tensor(CUDNN_DATA_BFLOAT16, dims, strides, /*is_virtual=*/true, /*is_scalar=*/false);
  CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
  set_descriptor(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
  finalize(operation);
  operations_.push_back(std::move(operation));
  return y;
}

CudnnPlan CudnnGraph::build(const std::string& what) {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.get());
  const CudnnDescriptor graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
  NMOE_CUDNN_CHECK(cudnn().set_attribute(graph.get(), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         static_cast<int64_t>(operations.size()), operations.data()));
  finalize(graph);

  CudnnPlan result;
  for (const CudnnDescriptor& config : engine_configs(graph)) {
    if (!is_deterministic(config)) continue;
    CudnnDescriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
    set_descriptor(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.get());
    if (cudnn().finalize(plan.get()) != CUDNN_STATUS_SUCCESS) continue;  // the engine does not take this graph
    int64_t count = 0;
    NMOE_CUDNN_CHECK(cudnn().get_attribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                           &count, &result.workspace_bytes_));
    result.plan_ = std::move(plan);
    result.scalars_ = scalars_;
    return result;
  }
  char detail[512] = "";
  cudnn().get_last_error_string(detail, sizeof(detail));
  throw usage_error(fmt::format("cuDNN has no deterministic kernel for {}: {}", what, detail),
                    "choose other head sizes (64 and 128 are common) or window, or set run.precision = \"fp32\"");
}

}  // namespace nmoe::cuda
