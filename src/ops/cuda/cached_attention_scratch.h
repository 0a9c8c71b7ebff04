// Which cached attention goes by tensor cores, and its scratch: as ops/cuda/scratch.h, free of CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/contracts/cache.h"
#include "tensor/arena.h"

namespace nmoe::cuda {

constexpr int kGroupHeads = 16;  // query heads of a key/value head, at most: rows of an instruction
constexpr int kMaxGroupKey = 576, kMaxGroupValue = 512;
constexpr int kChunkKeys = 128;  // positions of a block

// Whether its heads are taken in groups (kernels/cached_attention_groups.h): by dtypes and sizes alone.
inline bool takes_head_groups(const CachedAttention& args) {
  const int64_t heads = args.q.dim(1) / args.num_kv_heads, key = args.q.dim(2), value = args.out.dim(2);
  return args.q.dtype() == DType::kBF16 && heads <= kGroupHeads && key % 32 == 0 && key <= kMaxGroupKey &&
         value % 8 == 0 && value <= kMaxGroupValue;
}

struct CachedAttentionScratch {
  Tensor partials;    // [T, H, chunks, Dv] F32; undefined where heads are not taken in groups
  Tensor statistics;  // [T, H, chunks, 2] F32
};
inline CachedAttentionScratch claim(ArenaScope& scope, const CachedAttention& args) {
  if (!takes_head_groups(args)) return {};
  const int64_t T = args.q.dim(0), H = args.q.dim(1);
  const int64_t chunks = std::max<int64_t>(1, (args.keys.dim(1) + kChunkKeys - 1) / kChunkKeys);
  return {.partials = scope.allocate(DType::kF32, {T, H, chunks, args.out.dim(2)}),
          .statistics = scope.allocate(DType::kF32, {T, H, chunks, 2})};
}

// Of MlaCachedAttention: its attention, of queries in latent space [T, H, Rkv + rope] to sums of latents [T, H, Rkv],
// which claims scratch of its own.
inline CachedAttention claim_latents(ArenaScope& scope, const MlaCachedAttention& args) {
  const MlaSizes sizes = mla_sizes(args);
  const DType act = args.q.dtype();
  return {.scale = args.scale,
          .window = args.window,
          .q = scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank + sizes.rope}),
          .slots = args.slots,
          .positions = args.positions,
          .keys = args.cache,
          .values = {},
          .num_kv_heads = 1,
          .out = scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank})};
}

}  // namespace nmoe::cuda
