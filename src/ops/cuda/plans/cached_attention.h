// Attention of single tokens to a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

constexpr int kGroupHeads = 16;  // query heads of a key/value head, at most: rows of an instruction
constexpr int kMaxGroupKey = 576, kMaxGroupValue = 512;
constexpr int kChunkKeys = 128;  // positions of a block

// Whether its heads are taken in groups (kernels/attention/cached_attention_groups.h): by dtypes and sizes alone.
inline bool takes_head_groups(const CachedAttention& args) {
  const int64_t heads = args.q.dim(1) / args.num_kv_heads, key = args.q.dim(2), value = args.out.dim(2);
  return args.q.dtype() == DType::kBF16 && heads <= kGroupHeads && key % 32 == 0 && key <= kMaxGroupKey &&
         value % 8 == 0 && value <= kMaxGroupValue;
}

// What a block has of its head in shared memory, where they are not: a query and a sum of values, F32.
inline int64_t cached_head_bytes(const CachedAttention& args) {
  return (args.q.dim(2) + args.out.dim(2)) * static_cast<int64_t>(sizeof(float));
}
constexpr int64_t kMaxCachedHeadBytes = int64_t{47} << 10;

struct CachedAttentionPlan {
  bool by_groups = false;
  Tensor partials = {};    // [T, H, chunks, Dv] F32, by groups
  Tensor statistics = {};  // [T, H, chunks, 2] F32
};
inline CachedAttentionPlan plan(Planner& to, const CachedAttention& args) {
  if (!takes_head_groups(args)) {
    const int64_t bytes = cached_head_bytes(args);
    NMOE_CHECK(bytes <= kMaxCachedHeadBytes, "a head too wide: {} bytes of shared memory", bytes);
    return {};
  }
  const int64_t T = args.q.dim(0), H = args.q.dim(1);
  const int64_t chunks = std::max<int64_t>(1, blocks_for(args.keys.dim(1), kChunkKeys));
  CachedAttentionPlan plan{.by_groups = true};
  plan.partials = to.scope.allocate(DType::kF32, {T, H, chunks, args.out.dim(2)});
  plan.statistics = to.scope.allocate(DType::kF32, {T, H, chunks, 2});
  return plan;
}

// Its attention, of queries in latent space [T, H, Rkv + rope] to sums of latents [T, H, Rkv].
struct MlaCachedAttentionPlan {
  CachedAttention latents;
  CachedAttentionPlan attention;
};
inline MlaCachedAttentionPlan plan(Planner& to, const MlaCachedAttention& args) {
  const MlaSizes sizes = mla_sizes(args);
  const DType act = args.q.dtype();
  MlaCachedAttentionPlan mla{
      .latents = {.scale = args.scale,
                  .window = args.window,
                  .q = to.scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank + sizes.rope}),
                  .slots = args.slots,
                  .positions = args.positions,
                  .keys = args.cache,
                  .values = {},
                  .num_kv_heads = 1,
                  .out = to.scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank})},
      .attention = {}};
  mla.attention = plan(to, mla.latents);
  return mla;
}

}  // namespace nmoe::cuda
