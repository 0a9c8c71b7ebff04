// For tests of CUDA operations: a stream, scratch, and tensors that go to the device and back. Needs a GPU.
#pragma once

#include <gtest/gtest.h>

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

class CudaTest : public ::testing::Test {
 protected:
  static constexpr int64_t kScratchBytes = int64_t{64} << 20;

  CudaTest() : scratch_("scratch"), ctx_{nullptr, scratch_} {
    scratch_.reserve(memory_, kScratchBytes);
    NMOE_CUDA_CHECK(cudaStreamCreate(&ctx_.stream));
    NMOE_CUDA_CHECK(cudaDeviceGetAttribute(&ctx_.num_sms, cudaDevAttrMultiProcessorCount, 0));
    NMOE_CHECK(cublasLtCreate(&ctx_.cublas) == CUBLAS_STATUS_SUCCESS, "no cuBLASLt");
  }
  ~CudaTest() override {
    cublasLtDestroy(ctx_.cublas);
    cudaStreamDestroy(ctx_.stream);
    for (void* block : blocks_) cudaFree(block);
  }

  // Values of a host tensor on the device, as `dtype`, or as they are.
  Tensor to_device(Tensor host, DType dtype) {
    const Tensor x(nullptr, dtype, host.shape());
    std::vector<char> converted(static_cast<size_t>(x.num_bytes()));
    convert(host.dtype(), host.raw(), dtype, converted.data(), static_cast<size_t>(x.num_elements()));
    void* block = nullptr;
    NMOE_CUDA_CHECK(cudaMalloc(&block, converted.size() + 1));  // never 0 bytes
    blocks_.push_back(block);
    NMOE_CUDA_CHECK(cudaMemcpy(block, converted.data(), converted.size(), cudaMemcpyHostToDevice));
    return {block, dtype, host.shape()};
  }
  Tensor to_device(Tensor host) { return to_device(host, host.dtype()); }

  // Its values as F32 (BF16 and F32) or as they are, after all work on the stream.
  Tensor to_host(Tensor device) {
    NMOE_CUDA_CHECK(cudaStreamSynchronize(ctx_.stream));
    std::vector<char> raw(static_cast<size_t>(device.num_bytes()));
    NMOE_CUDA_CHECK(cudaMemcpy(raw.data(), device.raw(), raw.size(), cudaMemcpyDeviceToHost));
    const DType dtype = device.dtype() == DType::kBF16 ? DType::kF32 : device.dtype();
    const Tensor host = results_.zeros(dtype, device.shape());
    convert(device.dtype(), raw.data(), dtype, host.raw(), static_cast<size_t>(host.num_elements()));
    return host;
  }

  // Rounds an F32 host tensor to what `dtype` can hold, in place.
  static Tensor rounded(Tensor host, DType dtype) {
    if (dtype == DType::kBF16) {
      for (float& x : host.span<float>()) x = bf16_to_float(float_to_bf16(x));
    }
    return host;
  }

  // Does `work(context)` twice: to count scratch, then with just that much left.
  template <class Work>
  void run(const Work& work) {
    Arena counter("counter");
    cuda::Context counting{nullptr, counter, ctx_.num_sms, nullptr};
    work(counting);
    const ArenaScope scope(scratch_);
    const int64_t spare = scratch_.capacity() - counter.high_water();
    NMOE_CHECK(spare >= 0, "the test wants {} bytes of scratch", counter.high_water());
    if (spare > 0) scratch_.allocate(DType::kU8, {spare / Arena::kAlignment * Arena::kAlignment});
    work(ctx_);
    NMOE_CUDA_CHECK(cudaStreamSynchronize(ctx_.stream));
  }

  DeviceMemory memory_;
  Arena scratch_;
  cuda::Context ctx_;

 private:
  TensorPool results_;
  std::vector<void*> blocks_;
};

}  // namespace nmoe::test
