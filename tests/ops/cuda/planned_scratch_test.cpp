// A device that only counts claims what this one does: operation by operation, since in a whole step the scratch of
// one hides that of the others.
#include <functional>

#include "ops/cuda/cuda_test.h"

namespace nmoe::test {
namespace {

Tensor of(DType dtype, Shape shape) { return Tensor(nullptr, dtype, shape); }
Tensor floats(Shape shape) { return of(DType::kF32, shape); }
Tensor bf16(Shape shape) { return of(DType::kBF16, shape); }
Tensor ints(Shape shape) { return of(DType::kI32, shape); }

class PlannedScratch : public CudaTest {
 protected:
  static int64_t planned(const std::function<void(Ops&)>& work) {
    DeviceOptions options = kOptions;
    options.part = GpuPart{.memory_bytes = 1, .compute_major = NMOE_CUDA_MAJOR};
    const auto device = make_device(options);
    work(device->ops());
    return device->scratch(Lane::kCompute).high_water();
  }
  // And that there is any.
  static void expect_same(const std::function<void(Ops&)>& work) {
    const int64_t counted = counted_scratch(work);
    EXPECT_EQ(planned(work), counted);
    EXPECT_GT(counted, 0);
  }
};

TEST_F(PlannedScratch, OfMuon) {
  // A matrix, wide and tall; stacks that are worked on together, and in several turns; whose elements fill no slice.
  for (const Shape& shape :
       {Shape{1, 1}, Shape{300, 200}, Shape{200, 300}, Shape{4, 160, 64}, Shape{128, 1408, 2048}, Shape{40000, 8, 8}}) {
    SCOPED_TRACE(shape.to_string());
    for (const DType dtype : kActDTypes) {
      expect_same([&](Ops& ops) {
        ops.muon_step({.w = of(dtype, shape),
                       .low = dtype == DType::kBF16 ? of(DType::kI16, shape) : Tensor(),
                       .grad = floats(shape),
                       .momentum = floats(shape),
                       .grad_scale = of(DType::kF64, {1}),
                       .rates = of(DType::kF64, {1})});
      });
    }
  }
}

TEST_F(PlannedScratch, OfTheDeltaRule) {
  constexpr int64_t T = 500, G = 2, K = 128, H = 4, V = 64;
  for (const bool has_documents : {false, true}) {
    const DeltaRuleInputs in{.num_seqs = 2,
                             .seq_len = T / 2,
                             .q = bf16({T, G, K}),
                             .k = bf16({T, G, K}),
                             .v = bf16({T, H, V}),
                             .b = bf16({T, H}),
                             .a = bf16({T, H}),
                             .dt_bias = floats({H}),
                             .a_log = floats({H}),
                             .cu_seqlens = has_documents ? ints({T + 1}) : Tensor()};
    expect_same([&](Ops& ops) { ops.delta_rule_forward({.in = in, .y = bf16({T, H, V})}); });
    expect_same([&](Ops& ops) {
      ops.delta_rule_backward({.in = in,
                               .dy = bf16({T, H, V}),
                               .dq = bf16({T, G, K}),
                               .dk = bf16({T, G, K}),
                               .dv = bf16({T, H, V}),
                               .db = bf16({T, H}),
                               .da = bf16({T, H}),
                               .ddt_bias = floats({H}),
                               .da_log = floats({H})});
    });
  }
}

TEST_F(PlannedScratch, OfTheScan) {
  constexpr int64_t T = 500, H = 4, P = 64, G = 2, N = 128;
  for (const bool has_documents : {false, true}) {
    const SsdInputs in{.num_seqs = 2,
                       .seq_len = T / 2,
                       .x = bf16({T, H, P}),
                       .b = bf16({T, G, N}),
                       .c = bf16({T, G, N}),
                       .dt = bf16({T, H}),
                       .dt_bias = floats({H}),
                       .a_log = floats({H}),
                       .d = floats({H}),
                       .cu_seqlens = has_documents ? ints({T + 1}) : Tensor()};
    expect_same([&](Ops& ops) { ops.ssd_forward({.in = in, .y = bf16({T, H, P})}); });
    expect_same([&](Ops& ops) {
      ops.ssd_backward({.in = in,
                        .dy = bf16({T, H, P}),
                        .dx = bf16({T, H, P}),
                        .db = bf16({T, G, N}),
                        .dc = bf16({T, G, N}),
                        .ddt = bf16({T, H}),
                        .ddt_bias = floats({H}),
                        .da_log = floats({H}),
                        .dd = floats({H})});
    });
  }
}

TEST_F(PlannedScratch, OfTheVocabulary) {
  expect_same([](Ops& ops) { ops.embedding_backward({ints({5000}), bf16({5000, 96}), floats({777, 96})}); });
  expect_same([](Ops& ops) {
    ops.head_loss({.x = bf16({5000, 64}),
                   .w = bf16({777, 64}),
                   .targets = ints({5000}),
                   .grad_scale = of(DType::kF64, {1}),
                   .losses = floats({5000}),
                   .dx = bf16({5000, 64}),
                   .dw = floats({777, 64}),
                   .predictions = {}});
  });
}

TEST_F(PlannedScratch, OfAttention) {
  const AttentionShape shape{.num_seqs = 3, .seq_len = 192, .cu_seqlens = ints({9})};
  // Our own kernels and plain ones; cuDNN's workspace is an allowance.
  for (const int64_t size : {int64_t{64}, int64_t{36}}) {
    SCOPED_TRACE(size);
    const Tensor q = bf16({576, 4, size}), k = bf16({576, 2, size}), lse = floats({3, 4, 192});
    expect_same(
        [&](Ops& ops) { ops.attention_forward({.shape = shape, .q = q, .k = k, .v = k, .out = q, .lse = lse}); });
    expect_same([&](Ops& ops) {
      ops.attention_backward(
          {.shape = shape, .q = q, .k = k, .v = k, .out = q, .lse = lse, .dout = q, .dq = q, .dk = k, .dv = k});
    });
  }
}

TEST_F(PlannedScratch, OfExperts) {
  const Tensor offsets = ints({9});
  expect_same([&](Ops& ops) {
    ops.grouped_linear_backward_weight(
        {.x = bf16({4096, 256}), .dy = bf16({4096, 512}), .offsets = offsets, .dw = floats({8, 512, 256})});
  });
  expect_same([&](Ops& ops) {
    ops.grouped_activation_backward({.dy = bf16({4096, 256}),
                                     .w = bf16({8, 256, 512}),
                                     .offsets = offsets,
                                     .pre = bf16({4096, 1024}),
                                     .row_weight = floats({4096}),
                                     .dpre = bf16({4096, 1024}),
                                     .drow_weight = floats({4096})});
  });
  expect_same([&](Ops& ops) {
    ops.build_moe_plan(
        {.top_idx = ints({4096, 8}), .plan = {.offsets = ints({65}), .row_of = ints({4096, 8})}, .counts = {}});
  });
}

}  // namespace
}  // namespace nmoe::test
