// Gates of rows: against the CPU, of rows that lie apart, in place.
#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

using CudaGate = CudaTest;

TEST_F(CudaGate, BothDirectionsAreThoseOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const GateFunction function : {GateFunction::kSigmoid, GateFunction::kSilu}) {
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {70, 24}, {17, 1031}, {9, 4096}}) {
        SCOPED_TRACE(
            fmt::format("{} {} x {}, function {}", dtype_name(dtype), rows, width, static_cast<int>(function)));
        const Shape shape{rows, width};
        const int64_t beside = width % 8 == 0 ? 8 : 3;
        const Tensor x = normal(shape, dtype), gate = pool_.apart(normal(shape, dtype, 3.0), beside);
        const Tensor dy = normal(shape, dtype), y = pool_.zeros(shape), dx = pool_.zeros(shape);
        const Tensor dgate = pool_.apart(pool_.zeros(shape), beside);
        if (rows > 0) set(gate, 0, 200.0);
        if (rows > 1) set(gate, 1, -200.0);
        cpu().gate_forward({function, x, gate, y});
        cpu().gate_backward({function, x, gate, dy, dx, dgate});
        const Tensor device_x = up(x, dtype), device_gate = up(gate, dtype), device_y = tensors_.allocate(dtype, shape);
        const Tensor device_dy = up(dy, dtype), device_dgate = up(dgate, dtype);
        gpu().gate_forward({function, device_x, device_gate, device_y});
        // In place.
        gpu().gate_backward({function, device_x, device_gate, device_dy, device_dy, device_dgate});
        // A few fp32 roundings, of BF16's one more; 1 - s, down to a thousandth.
        EXPECT_TRUE(near(down(device_y), y, tolerance(dtype, 4e-6)));
        EXPECT_TRUE(near(down(device_dy), dx, tolerance(dtype, 4e-6)));
        EXPECT_TRUE(near(down(device_dgate), values(dgate), tolerance(dtype, 5e-4)));
      }
    }
  }
}

}  // namespace
}  // namespace nmoe::test
