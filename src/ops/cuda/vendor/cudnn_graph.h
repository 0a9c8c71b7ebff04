// cuDNN's backend graph API, as far as attention needs it: tensors and the operations between them are described
// first, cuDNN finds an engine for the whole, and the plan runs on whatever memory is named then.
//
// Descriptions are cuDNN's: every tensor has four dimensions, strides are in elements, and a matrix product is over the
// last two. Everything here is work of the host. Failures of cuDNN's calls are CheckFailure.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nmoe::cuda {

using CudnnDims = std::array<int64_t, 4>;

// Row-major and dense.
CudnnDims cudnn_packed(const CudnnDims& dims);

struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const noexcept;
};
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

// A tensor of a graph. The descriptor is the graph's and goes with it; the id stays, in the graph's plan.
struct CudnnTensor {
  int64_t id = 0;  // how the plan names it
  cudnnBackendDescriptor_t descriptor = nullptr;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  CudnnDims dims{}, strides{};
};

// Runs as often as wanted. Not thread-safe.
class CudnnPlan {
 public:
  // What a tensor of the graph is in one run: device memory.
  using Binding = std::pair<CudnnTensor, const void*>;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues on the handle's stream; capturable. Every memory tensor of the graph must be bound. `workspace` is device
  // memory of workspace_bytes(), aligned to 16 bytes.
  void run(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const;

 private:
  friend class CudnnGraph;

  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
  std::vector<std::pair<int64_t, float>> scalars_;
};

// Describes one graph. Operations compute in F32 unless named otherwise; what they return is virtual: it has no memory.
class CudnnGraph {
 public:
  explicit CudnnGraph(cudnnHandle_t handle) : handle_(handle) {}

  CudnnTensor memory(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides);
  CudnnTensor memory(cudnnDataType_t type, const CudnnDims& dims) { return memory(type, dims, cudnn_packed(dims)); }
  CudnnTensor scalar(float value);

  // Results have the dimensions of x, to which b is broadcast. What ends in _into writes to a tensor of memory.
  CudnnTensor pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b,
                        cudnnDataType_t type = CUDNN_DATA_FLOAT);
  void pointwise_into(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b, const CudnnTensor& y);
  CudnnTensor pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x);
  // x where the condition holds, and otherwise
  CudnnTensor select(const CudnnTensor& x, const CudnnTensor& otherwise, const CudnnTensor& condition);
  CudnnTensor index(const CudnnTensor& x, int64_t axis);  // I32: an element's place along the axis
  // a's second dimension may be a multiple of b's: query heads that share key/value heads.
  CudnnTensor multiply(const CudnnTensor& a, const CudnnTensor& b, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  void multiply_into(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c);
  CudnnTensor reduce(cudnnReduceTensorOp_t operation, const CudnnTensor& x, const CudnnDims& dims);
  void reduce_into(cudnnReduceTensorOp_t operation, const CudnnTensor& x, const CudnnTensor& y);
  // The last two dimensions swapped, as BF16: the form in which a product takes it.
  CudnnTensor transpose(const CudnnTensor& x);

  // The first engine that cuDNN's heuristic names, that takes the graph, and that gives the same bits every time.
  // `what` is for the message when there is none.
  CudnnPlan build(const std::string& what);

 private:
  CudnnTensor add_tensor(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides, bool is_virtual,
                         bool is_scalar);
  CudnnTensor add_virtual(cudnnDataType_t type, const CudnnDims& dims) {
    return add_tensor(type, dims, cudnn_packed(dims), /*is_virtual=*/true, /*is_scalar=*/false);
  }
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t compute;
    const CudnnTensor* x;
    const CudnnTensor* b;  // or null
    const CudnnTensor* t;  // or null
    const CudnnTensor* y;
    int64_t axis;  // or -1
  };
  void add_operation(CudnnDescriptor kind, CudnnDescriptor operation);  // `kind` describes it and is final
  void add_pointwise(const Pointwise& p);

  cudnnHandle_t handle_;
  int64_t next_id_ = 1;
  std::vector<CudnnDescriptor> kept_;  // tensors and what operations refer to
  std::vector<CudnnDescriptor> operations_;
  std::vector<std::pair<int64_t, float>> scalars_;
};

}  // namespace nmoe::cuda
