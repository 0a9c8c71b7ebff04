// Plans of CUDA's operations, which need no GPU: which kernels, and how much scratch.
#include "ops/cuda/plans.h"

#include <gtest/gtest.h>

#include "ops/cuda/plans/invariant_products.h"
#include "ops/factory.h"

namespace nmoe::test {
namespace {

constexpr cuda::KernelSet kHopper{.major = 9}, kBlackwell{.major = 10};

Tensor without_values(DType dtype, Shape shape) { return Tensor(nullptr, dtype, shape); }

// The most that a plan claims, of an arena that only counts.
template <class Arguments>
int64_t planned_bytes(const cuda::KernelSet& kernels, const Arguments& args) {
  Arena arena("scratch");
  cuda::Planner planner{arena, kernels};
  cuda::plan_operation(planner, args);
  return arena.high_water();
}

template <class Arguments>
cuda::PlanOf<Arguments> plan_of(const cuda::KernelSet& kernels, const Arguments& args) {
  Arena arena("scratch");
  cuda::Planner planner{arena, kernels};
  return cuda::plan_operation(planner, args).plan;
}

GroupedLinearForward grouped(DType dtype, int64_t in, int64_t out) {
  return {.x = without_values(dtype, {256, in}),
          .w = without_values(dtype, {8, out, in}),
          .offsets = without_values(DType::kI32, {9}),
          .y = without_values(dtype, {256, out})};
}

TEST(Plans, GroupedProductsChooseKernelsByDtypeAndWidths) {
  using enum cuda::GroupedEngine;
  EXPECT_EQ(plan_of(kHopper, grouped(DType::kBF16, 64, 72)).engine, kSm90);
  EXPECT_EQ(plan_of(kBlackwell, grouped(DType::kBF16, 64, 72)).engine, cuda::kPlainProducts ? kTiles : kSm100);
  EXPECT_EQ(plan_of(kHopper, grouped(DType::kBF16, 64, 76)).engine, kTiles);
  EXPECT_EQ(plan_of(kHopper, grouped(DType::kBF16, 60, 72)).engine, kTiles);
  EXPECT_EQ(plan_of(kHopper, grouped(DType::kF32, 64, 72)).engine, kTiles);
  GroupedLinearForward codes = grouped(DType::kBF16, 64, 128);
  codes.rounding = {.format = OperandFormat::kFp8, .weight = {.values = without_values(DType::kU8, {8, 128, 64})}};
  const cuda::GroupedLinearPlan plan = plan_of(kHopper, codes);
  EXPECT_EQ(plan.engine, kCodes);
  EXPECT_EQ(plan.codes.values.shape(), Shape({256, 64}));
  EXPECT_EQ(plan.codes.scales.shape(), Shape({256, 1}));
}

CachedAttention cached(DType dtype, int64_t tokens, int64_t heads, int64_t key, int64_t value, int64_t capacity) {
  constexpr int64_t kKvHeads = 2;
  const int64_t blocks = (capacity + kPagePositions - 1) / kPagePositions;
  return {.q = without_values(dtype, {tokens, heads, key}),
          .slots = without_values(DType::kI32, {tokens}),
          .positions = without_values(DType::kI32, {tokens}),
          .pages = without_values(DType::kI32, {3, blocks}),
          .keys = without_values(dtype, {7, kPagePositions, kKvHeads * key}),
          .values = without_values(dtype, {7, kPagePositions, kKvHeads * value}),
          .num_kv_heads = kKvHeads,
          .out = without_values(dtype, {tokens, heads, value})};
}

TEST(Plans, AttentionToACacheHasTrainingsOrderForItsHeads) {
  using enum cuda::CachedAttentionWay;
  const auto way = [](const CachedAttention& args) { return plan_of(kHopper, args).way; };
  EXPECT_EQ(way(cached(DType::kBF16, 1, 32, 64, 64, 300)), kBlocks);
  EXPECT_EQ(way(cached(DType::kBF16, 1, 32, 128, 128, 300)), kBlocks);
  EXPECT_EQ(way(cached(DType::kBF16, 1, 64, 192, 128, 300)), kBlocks);
  EXPECT_EQ(way(cached(DType::kBF16, 1, 32, 128, 64, 300)), kGroups);
  EXPECT_EQ(way(cached(DType::kBF16, 1, 32, 100, 64, 300)), kRows);
  EXPECT_EQ(way(cached(DType::kF32, 1, 32, 128, 128, 300)), kRows);
  CachedAttention latents = cached(DType::kBF16, 1, 16, 128, 128, 300);
  latents.values = {};
  EXPECT_EQ(way(latents), kGroups);
}

TEST(Plans, MlasCachesHaveTrainingsOrderForItsHeads) {
  using enum cuda::CachedAttentionWay;
  const auto way = [](const cuda::KernelSet& kernels, DType dtype, int64_t nope, int64_t rope, int64_t value,
                      double scale = 0.1) {
    constexpr int64_t kTokens = 5, kHeads = 3;
    return plan_of(kernels,
                   MlaExpandedAttention{.scale = scale,
                                        .q = without_values(dtype, {kTokens, kHeads, nope + rope}),
                                        .slots = without_values(DType::kI32, {kTokens}),
                                        .positions = without_values(DType::kI32, {kTokens}),
                                        .pages = without_values(DType::kI32, {2, 3}),
                                        .kv = without_values(dtype, {6, kPagePositions, kHeads * (nope + value)}),
                                        .k_rope = without_values(dtype, {6, kPagePositions, rope}),
                                        .out = without_values(dtype, {kTokens, kHeads, value})})
        .way;
  };
  EXPECT_EQ(way(kHopper, DType::kBF16, 128, 64, 128), kTiles);
  EXPECT_EQ(way(kHopper, DType::kBF16, 64, 64, 128), kTiles);
  EXPECT_EQ(way(kHopper, DType::kBF16, 32, 32, 64), kBlocks);
  EXPECT_EQ(way(kHopper, DType::kBF16, 96, 32, 128), kBlocks);
  EXPECT_EQ(way(kBlackwell, DType::kBF16, 128, 64, 128), kBlocks);
  EXPECT_EQ(way(kHopper, DType::kBF16, 124, 4, 128), kRows);
  EXPECT_EQ(way(kHopper, DType::kBF16, 128, 64, 64), kRows);
  EXPECT_EQ(way(kHopper, DType::kBF16, 128, 64, 128, 0.0), kRows);
  EXPECT_EQ(way(kHopper, DType::kF32, 128, 64, 128), kRows);
}

// More tokens than slots are prompts, which the kernel that trains takes where they are many; what it is planned for
// does for fewer.
TEST(Plans, PromptsAttendToACacheByTrainingsKernel) {
  using enum cuda::CachedAttentionWay;
  const auto args = [](int64_t tokens) { return cached(DType::kBF16, tokens, 32, 128, 128, 300); };
  EXPECT_EQ(plan_of(kHopper, args(cuda::kPromptTokens - 1)).way, kBlocks);
  EXPECT_EQ(plan_of(kHopper, args(cuda::kPromptTokens)).way, kTiles);
  EXPECT_EQ(plan_of(kBlackwell, args(4096)).way, kBlocks);
  EXPECT_EQ(plan_of(kHopper, cached(DType::kBF16, 4096, 32, 128, 64, 300)).way, kGroups);
  CachedAttention writers = args(cuda::kPromptTokens);
  writers.pages = without_values(DType::kI32, {cuda::kPromptTokens, 3});
  EXPECT_EQ(plan_of(kHopper, writers).way, kBlocks);
  EXPECT_GE(planned_bytes(kHopper, args(4096)), planned_bytes(kHopper, args(cuda::kPromptTokens - 1)));

  const auto latents = [](int64_t tokens, int64_t heads) {
    return CachedAttention{.q = without_values(DType::kBF16, {tokens, heads, cuda::kLatentKey}),
                           .slots = without_values(DType::kI32, {tokens}),
                           .positions = without_values(DType::kI32, {tokens}),
                           .pages = without_values(DType::kI32, {3, 32}),
                           .keys = without_values(DType::kBF16, {96, kPagePositions, cuda::kLatentKey}),
                           .values = {},
                           .num_kv_heads = 1,
                           .out = without_values(DType::kBF16, {tokens, heads, cuda::kLatentValue})};
  };
  EXPECT_EQ(plan_of(kHopper, latents(4096, 16)).way, kLatentTiles);
  EXPECT_EQ(plan_of(kHopper, latents(256, 16)).way, kGroups);
  EXPECT_EQ(plan_of(kHopper, latents(4096, 8)).way, kGroups);
  EXPECT_GE(planned_bytes(kHopper, latents(4096, 16)), planned_bytes(kHopper, latents(256, 16)));
}

// Tokens are taken in parts, of as many as have room, and a window's scores are those of what it sees.
TEST(Plans, ScoresOfACacheAreBounded) {
  constexpr int64_t kMost = int64_t{66} << 20;
  EXPECT_EQ(plan_of(kHopper, cached(DType::kBF16, 7, 32, 128, 128, 300)).scores.all.shape(), Shape({7, 32, 384}));
  for (const int64_t capacity : {1, 1000, 5000, 40960, 400000}) {
    const CachedAttention args = cached(DType::kBF16, 4096, 32, 128, 128, capacity);
    const int64_t bytes = planned_bytes(kHopper, args), parts = plan_of(kHopper, args).scores.all.dim(0);
    EXPECT_TRUE(parts >= 1 && bytes <= kMost) << bytes << " bytes for " << parts << " tokens of " << capacity;
  }
  CachedAttention args = cached(DType::kBF16, 7, 32, 128, 128, 40960);
  args.window = 512;
  EXPECT_EQ(plan_of(kHopper, args).scores.all.shape(), Shape({7, 32, 640}));
  EXPECT_EQ(plan_of(kHopper, args).scores.highest.shape(), Shape({7, 32, 10}));
}

// Addresses are the arenas' business: a plan made of counting tensors is that of the run.
TEST(Plans, AddressesDoNotMatter) {
  GroupedLinearForward args = grouped(DType::kBF16, 64, 64);
  alignas(16) std::byte memory[64 * 256 * 2 + 2];
  args.x = Tensor(memory + 2, DType::kBF16, {256, 64});
  EXPECT_EQ(plan_of(kHopper, args).engine, cuda::GroupedEngine::kSm90);
}

TEST(Plans, AFusedActivationKeepsNoGradientOfHiddenUnits) {
  GroupedActivationBackward args{.kind = Activation::kSwiGlu,
                                 .dy = without_values(DType::kBF16, {256, 64}),
                                 .w = without_values(DType::kBF16, {8, 64, 192}),
                                 .offsets = without_values(DType::kI32, {9}),
                                 .pre = without_values(DType::kBF16, {256, 384}),
                                 .row_weight = without_values(DType::kF32, {256}),
                                 .dpre = without_values(DType::kBF16, {256, 384}),
                                 .drow_weight = without_values(DType::kF32, {256})};
  const cuda::GroupedActivationBackwardPlan fused = plan_of(kHopper, args);
  EXPECT_TRUE(fused.fused);
  EXPECT_FALSE(fused.dh.defined());
  EXPECT_EQ(fused.row_sums.shape(), Shape({1, 256}));
  args.kind = Activation::kReluSquared;
  args.pre = args.dpre = without_values(DType::kBF16, {256, 192});
  EXPECT_TRUE(plan_of(kHopper, args).fused);
  EXPECT_EQ(planned_bytes(kHopper, args), 256 * 4);
  args.row_weight = args.drow_weight = {};
  const cuda::GroupedActivationBackwardPlan apart = plan_of(kHopper, args);
  EXPECT_FALSE(apart.fused);
  EXPECT_EQ(apart.dh.shape(), Shape({256, 192}));
  EXPECT_FALSE(apart.row_sums.defined());
}

// Only where no kernel works on codes alone, and nobody gave the memory.
TEST(Plans, ValuesThatNobodyWantsHaveScratchWhereKernelsMakeThem) {
  const RowCodes codes{.values = without_values(DType::kU8, {256, 256}),
                       .scales = without_values(DType::kU8, {256, 2})};
  const Shape values({256, 256});
  GroupedActivationForward forward{.kind = Activation::kSwiGlu,
                                   .x = without_values(DType::kBF16, {256, 64}),
                                   .w = without_values(DType::kBF16, {8, 256, 64}),
                                   .offsets = without_values(DType::kI32, {9}),
                                   .row_weight = without_values(DType::kF32, {256}),
                                   .pre = {},
                                   .h = without_values(DType::kBF16, {256, 128}),
                                   .pre_codes = codes};
  EXPECT_EQ(plan_of(kHopper, forward).pre.shape(), values);
  GroupedActivationBackward backward{.kind = Activation::kSwiGlu,
                                     .dy = without_values(DType::kBF16, {256, 64}),
                                     .w = without_values(DType::kBF16, {8, 64, 128}),
                                     .offsets = without_values(DType::kI32, {9}),
                                     .pre = {},
                                     .row_weight = without_values(DType::kF32, {256}),
                                     .dpre = {},
                                     .drow_weight = without_values(DType::kF32, {256}),
                                     .dpre_codes = codes,
                                     .dpre_columns = {.values = without_values(DType::kU8, {10, 256, 128}),
                                                      .scales = without_values(DType::kU8, {10, 256})},
                                     .pre_codes = codes};
  EXPECT_EQ(plan_of(kHopper, backward).pre.shape(), values);
  backward.dpre = without_values(DType::kBF16, values);
  EXPECT_FALSE(plan_of(kHopper, backward).pre.defined());
  backward.dpre = {};

  const OperandRounding in_codes{.format = OperandFormat::kFp8,
                                 .weight = {.values = without_values(DType::kU8, {8, 256, 64})}};
  forward.rounding = backward.rounding = in_codes;
  EXPECT_FALSE(plan_of(kHopper, forward).pre.defined());
  EXPECT_FALSE(plan_of(kHopper, backward).pre.defined());
  backward.h = without_values(DType::kBF16, {256, 128});
  EXPECT_EQ(plan_of(kHopper, backward).pre.shape(), values);
  backward.h = {};

  // Of one part, which is not gated: as many hidden units as pre-activations.
  forward.kind = backward.kind = Activation::kReluSquared;
  forward.h = without_values(DType::kBF16, values);
  const RowCodes half{.values = without_values(DType::kU8, {256, 128}), .scales = without_values(DType::kU8, {256, 1})};
  backward.pre_codes = backward.dpre_codes = half;
  backward.dpre_columns = {.values = without_values(DType::kU8, {10, 128, 128}),
                           .scales = without_values(DType::kU8, {10, 128})};
  EXPECT_FALSE(plan_of(kHopper, forward).pre.defined());
  EXPECT_FALSE(plan_of(kHopper, backward).pre.defined());
  forward.row_weight = backward.row_weight = backward.drow_weight = {};
  EXPECT_EQ(plan_of(kHopper, forward).pre.shape(), values);
  EXPECT_EQ(plan_of(kHopper, backward).pre.shape(), Shape({256, 128}));
}

// Logits, where they are in memory, are F32 and exist for a part of the rows whose gradients wait; validation has no
// gradients. On Hopper they are not in memory, where rows of the product are whole 16 bytes.
TEST(Plans, HeadsHaveLogitsOfAFewRowsAndGradientsOfMany) {
  struct Case {
    cuda::KernelSet kernels;
    DType act;
    int64_t tokens, dim, vocab, gradient_rows, logit_rows;  // 0: none
  };
  for (const Case& c : {Case{kHopper, DType::kBF16, 32'768, 2048, 163'840, 4096, 0},
                        {kHopper, DType::kBF16, 65'536, 768, 50'304, 13'184, 0},
                        {kHopper, DType::kBF16, 100, 64, 1000, 100, 0},
                        {kHopper, DType::kBF16, 100, 64, 1001, 100, 100},
                        {kHopper, DType::kBF16, 100, 63, 1000, 100, 100},
                        {kHopper, DType::kBF16, 4, 8, 500'000, 4, 0},
                        {kHopper, DType::kF32, 32'768, 2048, 163'840, 2048, 1024},
                        {kBlackwell, DType::kBF16, 32'768, 2048, 163'840, 4096, 1024},
                        {kBlackwell, DType::kBF16, 65'536, 768, 50'304, 13'184, 3328}}) {
    SCOPED_TRACE(fmt::format("{} tokens, vocabulary {}, {}", c.tokens, c.vocab, c.kernels.major));
    HeadLoss args{.x = without_values(c.act, {c.tokens, c.dim}),
                  .w = without_values(c.act, {c.vocab, c.dim}),
                  .targets = without_values(DType::kI32, {c.tokens}),
                  .grad_scale = without_values(DType::kF64, {1}),
                  .losses = without_values(DType::kF32, {c.tokens}),
                  .dx = without_values(c.act, {c.tokens, c.dim}),
                  .dw = without_values(DType::kF32, {c.vocab, c.dim}),
                  .predictions = {}};
    const auto expect_logits = [&](const cuda::HeadLossPlan& plan) {
      EXPECT_EQ(plan.logits.defined(), c.logit_rows > 0);
      if (c.logit_rows > 0) {
        EXPECT_EQ(plan.logits.shape(), Shape({c.logit_rows, c.vocab}));
      }
      const int64_t rows = c.logit_rows > 0 ? c.logit_rows : c.gradient_rows;
      EXPECT_EQ(plan.tiles.sums.shape(), Shape({(c.vocab + 191) / 192, rows, 2}));
      EXPECT_EQ(plan.tiles.targets.shape(), Shape({rows}));
    };
    const cuda::HeadLossPlan plan = plan_of(c.kernels, args);
    EXPECT_EQ(plan.gradients.dtype(), c.act);
    EXPECT_EQ(plan.gradients.shape(), Shape({c.gradient_rows, c.vocab}));
    EXPECT_FALSE(plan.tiles.best.defined());
    expect_logits(plan);
    args.dx = args.dw = args.grad_scale = Tensor();
    args.predictions = without_values(DType::kI32, {c.tokens});
    const cuda::HeadLossPlan of_losses = plan_of(c.kernels, args);
    EXPECT_FALSE(of_losses.gradients.defined());
    EXPECT_EQ(of_losses.tiles.best.shape(), Shape({(c.vocab + 191) / 192, of_losses.tiles.num_rows()}));
    expect_logits(of_losses);
  }
  const HeadLoss nothing{.x = without_values(DType::kBF16, {0, 64}), .w = without_values(DType::kBF16, {1000, 64})};
  EXPECT_EQ(plan_of(kHopper, nothing).tiles.num_rows(), 0);
}

TEST(Plans, OperandsRoundedAheadArePartOfThePlan) {
  LinearForward args{.x = without_values(DType::kBF16, {512, 256}),
                     .w = without_values(DType::kBF16, {128, 256}),
                     .y = without_values(DType::kBF16, {512, 128}),
                     .addend = {}};
  EXPECT_EQ(planned_bytes(kHopper, args), cuda::kProductWorkspaceBytes);
  args.rounding.format = OperandFormat::kMxFp8;
  EXPECT_EQ(planned_bytes(kHopper, args), cuda::kProductWorkspaceBytes + 2 * (512 + 128) * 256);
  Arena arena("scratch");
  cuda::Planner planner{arena, kHopper};
  const auto planned = cuda::plan_operation(planner, args);
  ASSERT_TRUE(planned.widened);
  EXPECT_EQ(planned.widened->args.rounding.format, OperandFormat::kAct);
  EXPECT_EQ(planned.plan.engine, cuda::LinearEngine::kVendor);
}

RouteTokens routed(int64_t tokens) {
  constexpr int64_t kExperts = 64, kTopK = 8;
  return {.rule = {.top_k = kTopK},
          .logits = without_values(DType::kF32, {tokens, kExperts}),
          .bias = without_values(DType::kF32, {kExperts}),
          .scores = without_values(DType::kF32, {tokens, kExperts}),
          .top_idx = without_values(DType::kI32, {tokens, kTopK}),
          .weights = without_values(DType::kF32, {tokens, kTopK}),
          .plan = {.offsets = without_values(DType::kI32, {kExperts + 1}),
                   .row_of = without_values(DType::kI32, {tokens, kTopK})},
          .row_weight = without_values(DType::kF32, {tokens * kTopK})};
}

TEST(Plans, FewTokensAreRoutedByOneBlockWithoutScratch) {
  EXPECT_TRUE(plan_of(kHopper, routed(32)).one_block);
  EXPECT_EQ(planned_bytes(kHopper, routed(32)), 0);
  EXPECT_FALSE(plan_of(kHopper, routed(33)).one_block);
  EXPECT_FALSE(plan_of(kHopper, routed(0)).one_block);
}

// As many matrices at a time as have 2^26 elements together.
TEST(Plans, MuonStacksMatrices) {
  const auto step = [](Shape shape) {
    return MuonStep{.w = without_values(DType::kBF16, shape),
                    .low = without_values(DType::kI16, shape),
                    .grad = without_values(DType::kF32, shape),
                    .momentum = without_values(DType::kF32, shape),
                    .grad_scale = without_values(DType::kF64, {1}),
                    .rates = without_values(DType::kF64, {1})};
  };
  const cuda::MuonPlan few = plan_of(kHopper, step({4, 64, 160}));
  EXPECT_EQ(few.x.shape(), Shape({4, 64 * 160}));
  EXPECT_EQ(few.gram.shape(), Shape({4, 64, 64}));
  EXPECT_EQ(few.partials.shape(), Shape({4, 1}));
  const cuda::MuonPlan many = plan_of(kHopper, step({128, 2048, 1024}));
  EXPECT_EQ(many.x.shape(), Shape({32, 2048 * 1024}));
  EXPECT_EQ(many.gram.shape(), Shape({32, 1024, 1024}));
  EXPECT_EQ(many.partials.shape(), Shape({32, 128}));
  const int64_t floats = 32 * (2 * 2048 * 1024 + 2 * 1024 * 1024 + 128) + 32;
  EXPECT_EQ(planned_bytes(kHopper, step({128, 2048, 1024})), 4 * floats + cuda::kMuonWorkspaceBytes + 128);
  EXPECT_EQ(planned_bytes(kHopper, step({0, 64, 160})), 0);
  // In BF16: the direction, in whose memory one of two iterates is, the other, and two halves of Gram's size.
  MuonStep in_bf16 = step({128, 2048, 1024});
  in_bf16.products = MuonProducts::kBf16;
  const int64_t halves = 32 * (2048 * 1024 + 2 * 1024 * 1024), rest = 32 * (2048 * 1024 + 128) + 32;
  EXPECT_EQ(planned_bytes(kHopper, in_bf16), 2 * halves + 4 * rest + cuda::kMuonWorkspaceBytes + 128);
}

// What one kernel cannot do, its plan says, to a counting run as to a step.
TEST(Plans, RefuseWhatTheirKernelsCannot) {
  RouteTokens args = routed(4096);
  args.rule.top_k = 33;
  EXPECT_THROW(plan_of(kHopper, args), CheckFailure);
  EXPECT_THROW(plan_of(kHopper, RmsNormBackward{.x = without_values(DType::kBF16, {4, 16392})}), CheckFailure);
  LinearForward product{.x = without_values(DType::kF32, {512, 256}),
                        .w = without_values(DType::kF32, {128, 256}),
                        .y = without_values(DType::kF32, {512, 128}),
                        .addend = {}};
  product.rounding.format = OperandFormat::kMxFp8;  // in BF16 alone
  EXPECT_THROW(plan_of(kHopper, product), CheckFailure);
}

// What is over before the next begins leaves its memory to it.
TEST(Plans, PartsOneAfterAnotherTakeTheSameMemory) {
  const RouteTokens args = routed(4096);
  const int64_t router = planned_bytes(kHopper, args.router());
  const int64_t plan = planned_bytes(kHopper, BuildMoePlan{.top_idx = args.top_idx, .plan = args.plan, .counts = {}});
  EXPECT_EQ(planned_bytes(kHopper, args), std::max(router, plan));
}

// A device that only counts claims what a plan says, and nothing for operations without one.
// Batch-invariant products claim training's scratch from as many rows on as they go through its kernels; in FP32, and
// of widths that tensor cores do not take, never.
TEST(Plans, ManyBatchInvariantRowsGoThroughTrainingsKernels) {
  const auto device = make_device({.kind = "cuda",
                                   .compute_dtype = DType::kBF16,
                                   .part = GpuPart{.memory_bytes = int64_t{80} << 30, .compute_major = 9}});
  const auto counted = [&](DType dtype, int64_t rows, int64_t width, int64_t depth = 64) {
    const Arena& scratch = device->scratch(Lane::kCompute);
    EXPECT_EQ(scratch.high_water(), 0);
    device->ops(Lane::kCompute, Arithmetic::kBatchInvariant)
        .linear_forward({.x = without_values(dtype, {rows, depth}),
                         .w = without_values(dtype, {width, depth}),
                         .y = without_values(dtype, {rows, width}),
                         .addend = {}});
    return scratch.high_water();
  };
  EXPECT_EQ(counted(DType::kBF16, cuda::kTrainingRows - 1, 72), 0);
  EXPECT_EQ(counted(DType::kBF16, 4096, 76), 0);
  EXPECT_EQ(counted(DType::kBF16, 4096, 72, cuda::kLeastTrainingDepth - 8), 0);
  EXPECT_EQ(counted(DType::kF32, 4096, 72), 0);
  EXPECT_EQ(counted(DType::kBF16, cuda::kTrainingRows, 72), cuda::kProductWorkspaceBytes);

  GroupedLinearForward experts = grouped(DType::kBF16, 64, 72);  // 256 rows of 8
  EXPECT_FALSE(cuda::takes_training_kernels(kHopper, experts));
  experts.x = without_values(DType::kBF16, {8 * cuda::kTrainingExpertRows, 64});
  EXPECT_TRUE(cuda::takes_training_kernels(kHopper, experts));
  EXPECT_FALSE(cuda::takes_training_kernels(kBlackwell, experts));
}

TEST(Plans, APlannedDeviceCountsThem) {
  const auto device = make_device({.kind = "cuda", .compute_dtype = DType::kBF16, .part = GpuPart{.memory_bytes = 1}});
  device->ops().fill({.x = without_values(DType::kF32, {1 << 20}), .value = 1.0});
  EXPECT_EQ(device->scratch(Lane::kCompute).high_water(), 0);
  const Sum sum{.x = without_values(DType::kF32, {1 << 20}), .out = without_values(DType::kF64, {1})};
  device->ops().sum(sum);
  EXPECT_EQ(device->scratch(Lane::kCompute).high_water(), planned_bytes(kHopper, sum));
  EXPECT_EQ(device->scratch(Lane::kCompute).used(), 0);
}

}  // namespace
}  // namespace nmoe::test
