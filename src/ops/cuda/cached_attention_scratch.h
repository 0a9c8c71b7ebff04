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

struct MlaCachedAttentionScratch {
  Tensor latent_q;                // [T, H, Rkv + rope]
  Tensor latents;                 // [T, H, Rkv]; without data where chunks has them in parts
  CachedAttentionScratch chunks;  // of `attention`, where its heads are taken in groups
  CachedAttention attention;      // of latent queries to latents
};
inline MlaCachedAttentionScratch claim(ArenaScope& scope, const MlaCachedAttention& args) {
  const MlaSizes sizes = mla_sizes(args);
  const int64_t T = sizes.tokens, H = sizes.heads, rank = sizes.rank;
  const DType act = args.q.dtype();
  MlaCachedAttentionScratch scratch;
  scratch.latent_q = scope.allocate(act, {T, H, rank + sizes.rope});
  scratch.latents = Tensor(nullptr, act, {T, H, rank});
  scratch.attention = {.scale = args.scale,
                       .window = args.window,
                       .q = scratch.latent_q,
                       .slots = args.slots,
                       .positions = args.positions,
                       .keys = args.cache,
                       .values = {},
                       .num_kv_heads = 1,
                       .out = scratch.latents};
  if (takes_head_groups(scratch.attention)) {
    scratch.chunks = claim(scope, scratch.attention);
  } else {
    scratch.attention.out = scratch.latents = scope.allocate(act, {T, H, rank});
  }
  return scratch;
}

}  // namespace nmoe::cuda
