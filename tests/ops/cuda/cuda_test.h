// What tests of CUDA operations start from: a stream, scratch, and tensors on both sides.
#pragma once

#include <gtest/gtest.h>

#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/context.h"
#include "ops/cuda/runtime/memory.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {

class CudaTest : public ::testing::Test {
 protected:
  CudaTest() {
    NMOE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NMOE_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0));
    NMOE_CHECK(cublasLtCreate(&cublas_) == CUBLAS_STATUS_SUCCESS, "cublasLtCreate failed");
    scratch_.reserve(memory_, int64_t{64} << 20);
    tensors_.reserve(memory_, int64_t{512} << 20);
  }
  ~CudaTest() override {
    cudaStreamDestroy(stream_);
    cublasLtDestroy(cublas_);
  }

  cuda::Context context() { return {stream_, scratch_, num_sms_, cublas_}; }
  // One in which operations only claim their scratch from `counting`.
  cuda::Context context(Arena& counting) const { return {stream_, counting, num_sms_, cublas_}; }

  // Does `work(context)` twice: to count scratch, then with just that much left.
  template <class Work>
  void run(const Work& work) {
    Arena counter("counter");
    cuda::Context counting = context(counter);
    work(counting);
    const ArenaScope scope(scratch_);
    const int64_t spare = scratch_.capacity() - counter.high_water();
    NMOE_CHECK(spare >= 0, "the test wants {} bytes of scratch", counter.high_water());
    if (spare > 0) scratch_.allocate(DType::kU8, {spare / Arena::kAlignment * Arena::kAlignment});
    cuda::Context real = context();
    work(real);
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  // A device copy; F32 values are rounded to `dtype` when it is BF16. Undefined stays undefined.
  Tensor up(Tensor host, DType dtype) {
    if (!host.defined()) return {};
    const Tensor device = tensors_.allocate(dtype, host.shape());
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    convert(host.dtype(), host.raw(), dtype, bytes.data(), static_cast<size_t>(host.num_elements()));
    // Finished at return, so that it is there for any stream.
    NMOE_CUDA_CHECK(cudaMemcpy(device.raw(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    NMOE_CUDA_CHECK(cudaDeviceSynchronize());
    return device;
  }
  Tensor up(Tensor host) { return up(host, host.dtype()); }

  // A host copy of what is there when the stream is done; BF16 comes as F32.
  Tensor down(Tensor device) {
    NMOE_CUDA_CHECK(cudaStreamSynchronize(stream_));
    std::vector<std::byte> bytes(static_cast<size_t>(device.num_bytes()));
    NMOE_CUDA_CHECK(cudaMemcpy(bytes.data(), device.raw(), bytes.size(), cudaMemcpyDeviceToHost));
    const DType dtype = device.dtype() == DType::kBF16 ? DType::kF32 : device.dtype();
    const Tensor host = pool_.zeros(dtype, device.shape());
    convert(device.dtype(), bytes.data(), dtype, host.raw(), static_cast<size_t>(device.num_elements()));
    return host;
  }

  // Normal values that `dtype` can hold, as F32: what both sides start from.
  Tensor normal(Shape shape, DType dtype = DType::kF32, double scale = 1.0, double mean = 0.0) {
    return rounded(pool_.normal(shape, scale, mean), dtype);
  }
  static Tensor rounded(Tensor x, DType dtype) {
    if (dtype != DType::kBF16) return x;
    for (float& value : x.span<float>()) value = bf16_to_float(float_to_bf16(value));
    return x;
  }

  // Half a unit in BF16's last place for results that are rounded once, with room for the fp32 error before it.
  static double tolerance(DType dtype, double fp32) { return dtype == DType::kBF16 ? 0x1.1p-8 : fp32; }

  TensorPool pool_{DType::kF32};
  cuda::DeviceMemory memory_;
  Arena scratch_{"scratch"};
  Arena tensors_{"tensors"};
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  int num_sms_ = 0;
};

// Both compute dtypes of CUDA.
constexpr DType kActDTypes[] = {DType::kF32, DType::kBF16};

}  // namespace nmoe::test
