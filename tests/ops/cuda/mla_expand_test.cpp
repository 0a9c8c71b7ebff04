#include <limits>

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

// Codes of the expanded latent's gradient, made where it is written and behind it: heads that end within a block of
// codes, rows that do, and more than a thread block has at once.
TEST_F(CudaMlaExpand, BackwardLeavesCodes) {
  constexpr Case kCoded[] = {{17, 16, 128, 64, 128}, {5, 2, 72, 8, 56}, {3, 24, 128, 16, 256}, {6, 3, 16, 8, 16}};
  for (const auto& [tokens, heads, nope, rope, value] : kCoded) {
    const int64_t width = heads * (nope + value), across = (width + 127) / 128;
    const Tensor dk = normal({tokens, heads, nope + rope}, DType::kBF16),
                 dv = normal({tokens, heads, value}, DType::kBF16, 1e-3),
                 dkv = pool_.zeros({tokens, heads, nope + value}), shared = pool_.zeros({tokens, rope});
    set(dk, 0, std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < value; ++i) set(dv, i, -0.0);
    const RowCodes expected{.values = pool_.zeros(DType::kU8, {tokens, width}),
                            .scales = pool_.zeros(DType::kU8, {tokens, across})};
    cpu().mla_expand_backward({.dk = dk, .dv = dv, .dkv = dkv, .dk_rope = shared, .dkv_codes = expected});
    const RowCodes codes{.values = tensors_.allocate(DType::kU8, {tokens, width}),
                         .scales = tensors_.allocate(DType::kU8, {tokens, across})};
    const Tensor device_dkv = tensors_.allocate(DType::kBF16, dkv.shape()),
                 device_shared = tensors_.allocate(DType::kBF16, shared.shape());
    gpu().mla_expand_backward({.dk = up(dk, DType::kBF16),
                               .dv = up(dv, DType::kBF16),
                               .dkv = device_dkv,
                               .dk_rope = device_shared,
                               .dkv_codes = codes});
    EXPECT_TRUE(same_bits(down(device_dkv), dkv)) << width;
    EXPECT_TRUE(same_bits(down(codes.scales), expected.scales)) << width;
    // A NaN has no one code.
    const auto plain = [](const Tensor& values) {
      for (uint8_t& code : values.span<uint8_t>()) code = (code & 0x7F) == 0x7F ? uint8_t{0x7F} : code;
      return values;
    };
    EXPECT_TRUE(same_bits(plain(down(codes.values)), plain(expected.values))) << width;
  }
}

}  // namespace
}  // namespace nmoe::test
