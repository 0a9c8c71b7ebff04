#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct Case {
  int64_t tokens, heads, nope, rope, value;
};
constexpr Case kCases[] = {
    {0, 2, 8, 8, 8}, {1, 1, 1, 1, 1}, {5, 3, 7, 2, 9}, {17, 16, 128, 64, 128}, {6, 2, 16, 8, 20}};

using CudaMlaExpand = CudaTest;

TEST_F(CudaMlaExpand, BothDirectionsAreThoseOfTheCpu) {
  for (const DType dtype : kActDTypes) {
    for (const auto& [tokens, heads, nope, rope, value] : kCases) {
      const Shape kv_shape{tokens, heads, nope + value}, k_shape{tokens, heads, nope + rope},
          v_shape{tokens, heads, value};
      const Tensor kv = normal(kv_shape, dtype), shared = normal({tokens, rope}, dtype);
      const Tensor k = pool_.zeros(k_shape), v = pool_.zeros(v_shape);
      cpu().mla_expand_forward({kv, shared, k, v});
      const Tensor device_k = tensors_.allocate(dtype, k_shape), device_v = tensors_.allocate(dtype, v_shape);
      gpu().mla_expand_forward({up(kv, dtype), up(shared, dtype), device_k, device_v});
      EXPECT_TRUE(same_bits(down(device_k), k));
      EXPECT_TRUE(same_bits(down(device_v), v));

      const Tensor dk = normal(k_shape, dtype), dv = normal(v_shape, dtype);
      const Tensor dkv = pool_.zeros(kv_shape), dshared = pool_.zeros({tokens, rope});
      cpu().mla_expand_backward({dk, dv, dkv, dshared});
      const Tensor device_dkv = tensors_.allocate(dtype, kv_shape),
                   device_dshared = tensors_.allocate(dtype, {tokens, rope});
      gpu().mla_expand_backward({up(dk, dtype), up(dv, dtype), device_dkv, device_dshared});
      EXPECT_TRUE(same_bits(down(device_dkv), dkv));
      EXPECT_TRUE(same_bits(down(device_dshared), rounded(dshared, dtype)));  // both add the heads in order
    }
  }
}

}  // namespace
}  // namespace nmoe::test
