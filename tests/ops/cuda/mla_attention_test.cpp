// Attention of MLA, in parts where they lie and of assembled heads. Needs a GPU.
#include <vector>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

struct AttentionCase {
  int64_t num_seqs, seq_len, heads, nope, rope, value;
  int64_t window = 0;
  bool documents = false, codes = false;
};
// The first are those that kernels of our own take in parts.
constexpr AttentionCase kAttentionCases[] = {
    {2, 200, 3, 128, 64, 128, 0, false, true}, {1, 517, 2, 128, 64, 128, 100, true, false},
    {2, 130, 5, 64, 64, 128, 0, true, true},   {1, 300, 2, 0, 64, 64, 0, false, false},
    {2, 96, 4, 32, 32, 64, 0, true, true},     {1, 70, 3, 7, 2, 9, 20, false, false},
};

class CudaMlaAttention : public CudaTest, public ::testing::WithParamInterface<std::tuple<size_t, DType>> {
 protected:
  AttentionCase case_ = kAttentionCases[std::get<0>(GetParam())];
  DType dtype_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Cases, CudaMlaAttention,
                         ::testing::Combine(::testing::Range(size_t{0}, std::size(kAttentionCases)),
                                            ::testing::ValuesIn(kActDTypes)));

// To the bit what attention of whole keys and values gives, and its gradients in parts.
TEST_P(CudaMlaAttention, IsThatOfAssembledKeys) {
  const auto& [B, S, H, N, P, U, window, documents, codes] = case_;
  const int64_t T = B * S, C = H * (N + U), across = (C + 127) / 128;
  AttentionShape shape{B, S, 0.11, window};
  if (documents) {
    std::vector<double> bounds;
    for (int64_t b = 0; b < B; ++b) {
      bounds.push_back(static_cast<double>(b * S));
      bounds.push_back(static_cast<double>(b * S + S / 3));
    }
    bounds.push_back(static_cast<double>(T));
    shape.cu_seqlens = up(pool_.ints({std::ssize(bounds)}, bounds));
  }
  const Shape key_shape{T, H, N + P}, value_shape{T, H, U}, kv_shape{T, H, N + U};
  // What heads share lies in a matrix of projections.
  const Tensor all = up(pool_.normal({T, 48 + P}), dtype_), dall = up(pool_.full({T, 48 + P}, 7.0), dtype_);
  const Tensor q = up(pool_.normal(key_shape), dtype_), kv = up(pool_.normal(kv_shape), dtype_),
               k_rope = all.columns(24, 24 + P), dout = up(pool_.normal(value_shape), dtype_);
  const auto room = [&](Shape of) { return up(pool_.full(of, NAN), dtype_); };
  const auto codes_room = [&]() -> RowCodes {
    if (!codes || dtype_ != DType::kBF16) return {};
    return {.values = tensors_.allocate(DType::kU8, {T, C}), .scales = tensors_.allocate(DType::kU8, {T, across})};
  };
  const std::vector<double> places = [&] {
    std::vector<double> positions;
    for (int64_t t = 0; t < T; ++t) positions.push_back(static_cast<double>(t % S));
    return positions;
  }();
  const Rope rope{.x = {},
                  .positions = up(pool_.ints({T}, places)),
                  .cos = up(pool_.normal({S, P / 2})),
                  .sin = up(pool_.normal({S, P / 2})),
                  .rope_offset = N,
                  .layout = RopeLayout::kInterleaved};

  const Tensor out = room(value_shape), lse = up(pool_.full({B, H, S}, NAN)), dq = room(key_shape),
               dkv = room(kv_shape), dk_rope = dall.columns(24, 24 + P);
  const RowCodes dkv_codes = codes_room();
  run([&](Ops& ops) {
    ops.mla_attention_forward({.shape = shape, .q = q, .kv = kv, .k_rope = k_rope, .out = out, .lse = lse});
    ops.mla_attention_backward({.shape = shape,
                                .q = q,
                                .kv = kv,
                                .k_rope = k_rope,
                                .out = out,
                                .lse = lse,
                                .dout = dout,
                                .dq = dq,
                                .dkv = dkv,
                                .dk_rope = dk_rope,
                                .rope = rope,
                                .dkv_codes = dkv_codes});
  });

  // Whole keys and values, put together on the host, and their gradients.
  const Tensor host_kv = down(kv), host_all = down(all), host_k = pool_.zeros(key_shape),
               host_v = pool_.zeros(value_shape);
  for (int64_t row = 0; row < T * H; ++row) {
    for (int64_t i = 0; i < N; ++i) set(host_k, row * (N + P) + i, get(host_kv, row * (N + U) + i));
    for (int64_t i = 0; i < P; ++i) set(host_k, row * (N + P) + N + i, get(host_all, row / H * (48 + P) + 24 + i));
    for (int64_t i = 0; i < U; ++i) set(host_v, row * U + i, get(host_kv, row * (N + U) + N + i));
  }
  const Tensor k = up(host_k, dtype_), v = up(host_v, dtype_), dk = room(key_shape), dv = room(value_shape);
  const Tensor expected_out = room(value_shape), expected_lse = up(pool_.full({B, H, S}, NAN)),
               expected_dq = room(key_shape);
  run([&](Ops& ops) {
    ops.attention_forward({.shape = shape, .q = q, .k = k, .v = v, .out = expected_out, .lse = expected_lse});
    ops.attention_backward({.shape = shape,
                            .q = q,
                            .k = k,
                            .v = v,
                            .out = expected_out,
                            .lse = expected_lse,
                            .dout = dout,
                            .dq = expected_dq,
                            .dk = dk,
                            .dv = dv,
                            .rope = rope});
  });
  const Tensor host_dk = down(dk), host_dv = down(dv), expected_dkv = pool_.zeros(kv_shape), sums = pool_.zeros({T, P});
  for (int64_t row = 0; row < T * H; ++row) {
    for (int64_t i = 0; i < N; ++i) set(expected_dkv, row * (N + U) + i, get(host_dk, row * (N + P) + i));
    for (int64_t i = 0; i < U; ++i) set(expected_dkv, row * (N + U) + N + i, get(host_dv, row * U + i));
    for (int64_t i = 0; i < P; ++i) {  // in F32
      const int64_t at = row / H * P + i;
      set(sums, at, static_cast<float>(get(sums, at)) + static_cast<float>(get(host_dk, row * (N + P) + N + i)));
    }
  }
  EXPECT_TRUE(same_bits(down(out), down(expected_out)));
  EXPECT_TRUE(same_bits(down(lse), down(expected_lse)));
  EXPECT_TRUE(same_bits(down(dq), down(expected_dq)));
  EXPECT_TRUE(same_bits(down(dkv), expected_dkv));
  const Tensor actual_sums = down(dall), expected_sums = rounded(sums, dtype_);
  for (int64_t i = 0; i < actual_sums.num_elements(); ++i) {
    const int64_t t = i / (48 + P), column = i % (48 + P) - 24;
    const bool is_beside = column < 0 || column >= P;
    ASSERT_EQ(get(actual_sums, i), is_beside ? 7.0 : get(expected_sums, t * P + column)) << "token " << t;
  }
  if (dkv_codes.defined()) {
    const RowCodes expected_codes = codes_room();
    gpu().quantize({.format = OperandFormat::kFp8,
                    .x = dkv.reshape({1, T, C}),
                    .values = expected_codes.values.reshape({1, T, C}),
                    .scales = expected_codes.scales.reshape({1, T, across})});
    EXPECT_TRUE(same_bits(down(dkv_codes.values), down(expected_codes.values)));
    EXPECT_TRUE(same_bits(down(dkv_codes.scales), down(expected_codes.scales)));
  }
}

}  // namespace
}  // namespace nmoe::test
