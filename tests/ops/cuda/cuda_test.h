// What tests of CUDA operations share: a stream, scratch, and tensors on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {

class DeviceMemory : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    void* block = nullptr;
    NMOE_CUDA_CHECK(cudaMalloc(&block, static_cast<size_t>(bytes)));
    NMOE_CUDA_CHECK(cudaMemset(block, 0, static_cast<size_t>(bytes)));
    return block;
  }
  void release(void* block, int64_t) noexcept override { cudaFree(block); }
};

// Host tensors are F32, F64 or I32, of pool_; device tensors live as long as the test.
class CudaTest : public ::testing::Test {
 protected:
  static constexpr int64_t kArenaBytes = 64 << 20;

  CudaTest() {
    NMOE_CUDA_CHECK(cudaStreamCreate(&stream_));
    NMOE_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0));
    tensors_.reserve(memory_, kArenaBytes);
    scratch_.reserve(memory_, kArenaBytes);
  }
  ~CudaTest() override { cudaStreamDestroy(stream_); }

  cuda::Context context() { return {.stream = stream_, .scratch = scratch_, .num_sms = num_sms_, .cublas = nullptr}; }
  // One in which operations only claim their scratch from `counting`.
  cuda::Context context(Arena& counting) const {
    return {.stream = stream_, .scratch = counting, .num_sms = num_sms_, .cublas = nullptr};
  }

  // A host tensor's values on the device; an F32 one as `dtype` if that is BF16.
  Tensor up(Tensor host, DType dtype) {
    const Tensor device = tensors_.allocate(dtype, host.shape());
    if (host.num_elements() == 0) return device;
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    convert(host.dtype(), host.raw(), dtype, bytes.data(), static_cast<size_t>(host.num_elements()));
    NMOE_CUDA_CHECK(cudaMemcpyAsync(device.raw(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_));
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    return device;
  }
  Tensor up(Tensor host) { return up(host, host.dtype()); }

  // The values of a device tensor, BF16 as F32.
  Tensor down(Tensor device) {
    const DType dtype = device.dtype() == DType::kBF16 ? DType::kF32 : device.dtype();
    const Tensor host = pool_.zeros(dtype, device.shape());
    if (host.num_elements() == 0) return host;
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    NMOE_CUDA_CHECK(cudaMemcpyAsync(bytes.data(), device.raw(), bytes.size(), cudaMemcpyDeviceToHost, stream_));
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    convert(device.dtype(), bytes.data(), dtype, host.raw(), static_cast<size_t>(host.num_elements()));
    return host;
  }

  // The values of an F32 host tensor as `act` can hold them, in place.
  static Tensor rounded(Tensor host, DType act) {
    if (act == DType::kBF16) {
      for (float& value : host.span<float>()) value = bf16_to_float(float_to_bf16(value));
    }
    return host;
  }

  TensorPool pool_{DType::kF32};

 private:
  cudaStream_t stream_ = nullptr;
  int num_sms_ = 0;
  DeviceMemory memory_;
  Arena tensors_{"tensors"};
  Arena scratch_{"scratch"};
};

}  // namespace nmoe::test
