// The CUDA kernel against the CPU operation. Needs a GPU: label gpu.
#include "ops/cuda/rms_norm.h"

#include <gtest/gtest.h>

#include "ops/cuda/check.h"
#include "support/tensors.h"

namespace nmoe::test {
namespace {

// A device copy of a host tensor's values.
class DeviceArray {
 public:
  explicit DeviceArray(Tensor host) : bytes_(static_cast<size_t>(host.num_bytes())) {
    NMOE_CUDA_CHECK(cudaMalloc(&data_, bytes_));
    NMOE_CUDA_CHECK(cudaMemcpy(data_, host.raw(), bytes_, cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  float* data() const { return static_cast<float*>(data_); }
  void download(Tensor host) const { NMOE_CUDA_CHECK(cudaMemcpy(host.raw(), data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class CudaRmsNorm : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(CudaRmsNorm, MatchesTheCpu) {
  const auto [rows, dim] = GetParam();
  constexpr double kEps = 1e-6;
  const auto cpu = cpu_backend(DType::kF32);
  TensorPool pool(DType::kF32);
  const Tensor x = pool.normal({rows, dim}), gain = pool.normal({dim}, 0.1, 1.0);
  const Tensor expected = pool.zeros({rows, dim}), expected_rstd = pool.zeros({rows});
  cpu->rms_norm_forward(x, gain, kEps, expected, expected_rstd);

  const Tensor y = pool.zeros({rows, dim}), rstd = pool.zeros({rows});
  const DeviceArray device_x(x), device_gain(gain), device_y(y), device_rstd(rstd);
  cuda::rms_norm_forward({.x = device_x.data(),
                          .gain = device_gain.data(),
                          .y = device_y.data(),
                          .rstd = device_rstd.data(),
                          .num_vectors = rows,
                          .dim = dim,
                          .eps = static_cast<float>(kEps)},
                         nullptr);
  NMOE_CUDA_CHECK(cudaDeviceSynchronize());
  device_y.download(y);
  device_rstd.download(rstd);
  // Two orders of summing D squares in fp32: D^(1/2) rounding errors of 6e-8, with room.
  EXPECT_TRUE(near(y, expected, 4e-6));
  EXPECT_TRUE(near(rstd, expected_rstd, 4e-6));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaRmsNorm,
                         ::testing::Values(std::pair<int64_t, int64_t>{1, 1}, std::pair<int64_t, int64_t>{3, 7},
                                           std::pair<int64_t, int64_t>{65, 255}, std::pair<int64_t, int64_t>{17, 256},
                                           std::pair<int64_t, int64_t>{1000, 768},
                                           std::pair<int64_t, int64_t>{5, 7168}));

}  // namespace
}  // namespace nmoe::test
