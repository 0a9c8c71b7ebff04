// Attention of single tokens to a cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "ops/cuda/plans/planner.h"

namespace nmoe::cuda {

// --- by blocks (kernels/attention/cached_attention_blocks.h): heads that our own kernels train with on Hopper

constexpr int kBlockRows = 16;  // query heads of a key/value head, of some tokens: rows of an instruction
constexpr int kScoreTile = 64;  // positions of which a row's highest score is kept
constexpr int kScoreAlignment = kPagePositions;  // a row's scores are kept from a multiple of this on
// Bytes of scores, as far as a token has no more. Tokens are taken in parts of as many as keep within it.
constexpr int64_t kScoreBytes = int64_t{64} << 20;

// By dtypes and sizes alone.
inline bool takes_blocks(const Tensor& q, const Tensor& out, double scale) {
  const int64_t key = q.dim(2), value = out.dim(2);
  return q.dtype() == DType::kBF16 && scale > 0 &&
         ((key == 64 && value == 64) || (value == 128 && (key == 128 || key == 192)));
}
inline bool takes_blocks(const CachedAttention& args) {
  return args.values.defined() && takes_blocks(args.q, args.out, args.scale);
}
// Pieces of 8 elements lie in one of the caches.
inline bool takes_blocks(const MlaExpandedAttention& args) {
  return args.k_rope.dim(2) % 8 == 0 && takes_blocks(args.q, args.out, args.scale);
}
// Many tokens, and more than there are slots: some slot has several of them, as prompts have.
constexpr int64_t kPromptTokens = 512;
inline bool are_prompts(const Tensor& q, const Tensor& pages) {
  return q.dim(0) >= kPromptTokens && q.dim(0) > pages.dim(0);
}
// Tiles of rows want no more than blocks but rows of whole 16 bytes. Where heads share keys, a block has several heads
// of a single token, so that tiles are for prompts.
inline bool takes_tiles(const KernelSet& kernels, const MlaExpandedAttention& args) {
  return kernels.has_sm90() && args.k_rope.dim(2) == 64 && args.q.stride() % 8 == 0 && takes_blocks(args);
}
inline bool takes_tiles(const KernelSet& kernels, const CachedAttention& args) {
  return kernels.has_sm90() && args.q.stride() % 8 == 0 && takes_blocks(args) && are_prompts(args.q, args.pages);
}
// Positions that a row has scores of.
inline int64_t score_span(const Tensor& pages, int64_t window) {
  const int64_t positions = pages.dim(1) * kPagePositions;
  if (window == 0) return std::max<int64_t>(positions, kScoreAlignment);
  const int64_t seen = (blocks_for(window, kScoreAlignment) + 1) * kScoreAlignment;
  return std::clamp<int64_t>(positions, kScoreAlignment, seen);
}
// Tokens of a part.
inline int64_t score_tokens(const Tensor& q, int64_t span) {
  const int64_t token_bytes = q.dim(1) * span * static_cast<int64_t>(sizeof(float));
  const int64_t tokens = std::max<int64_t>(1, kScoreBytes / token_bytes);
  return std::min(q.dim(0), tokens < kBlockRows ? tokens : tokens / kBlockRows * kBlockRows);
}
struct CachedScores {
  Tensor all;      // [tokens of a part, H, span] F32
  Tensor highest;  // [tokens of a part, H, span / kScoreTile] F32
};
// `pages`: [Z, B].
inline CachedScores claim_scores(ArenaScope& scope, const Tensor& q, const Tensor& pages, int64_t window) {
  const int64_t H = q.dim(1), span = score_span(pages, window), tokens = score_tokens(q, span);
  const Tensor all = scope.allocate(DType::kF32, {tokens, H, span});
  return {.all = all, .highest = scope.allocate(DType::kF32, {tokens, H, span / kScoreTile})};
}

// --- by groups (kernels/attention/cached_attention_groups.h): other heads, and MLA's of latents

constexpr int kGroupHeads = 16;  // query heads of a key/value head, at most: rows of an instruction
constexpr int kMaxGroupKey = 576, kMaxGroupValue = 512;
constexpr int kChunkKeys = kPagePositions;  // of a block
// Tokens are taken in parts, whose chunks' sums have so many bytes, or of so many tokens.
constexpr int64_t kPartialBytes = int64_t{256} << 20, kPartialTokens = 256;

// Sizes of MLA in latent space that many tokens have a kernel for (sm90/latent_attention.h), with the same bits.
constexpr int kLatentHeads = 16, kLatentKey = 576, kLatentValue = 512;
constexpr int64_t kMaxLatentTokens = 1 << 16;
inline bool takes_latent_tiles(const KernelSet& kernels, const CachedAttention& args) {
  return args.q.dtype() == DType::kBF16 && !args.values.defined() && !args.sinks.defined() && args.num_kv_heads == 1 &&
         args.q.dim(1) == kLatentHeads && args.q.dim(2) == kLatentKey && args.q.dense() &&
         args.out.dim(2) == kLatentValue && args.q.dim(0) <= kMaxLatentTokens && kernels.has_sm90() &&
         are_prompts(args.q, args.pages);
}

// By dtypes and sizes alone.
inline bool takes_head_groups(const CachedAttention& args) {
  const int64_t heads = args.q.dim(1) / args.num_kv_heads, key = args.q.dim(2), value = args.out.dim(2);
  return args.q.dtype() == DType::kBF16 && heads <= kGroupHeads && key % 32 == 0 && key <= kMaxGroupKey &&
         value % 8 == 0 && value <= kMaxGroupValue;
}

// --- by rows (kernels/attention/cached_attention.cu): the rest

// What a block has of its head in shared memory, where they are not: a query and a sum of values, F32.
template <class Arguments>
int64_t cached_head_bytes(const Arguments& args) {
  return (args.q.dim(2) + args.out.dim(2)) * static_cast<int64_t>(sizeof(float));
}
constexpr int64_t kMaxCachedHeadBytes = int64_t{47} << 10;

template <class Arguments>
void check_head_fits(const Arguments& args) {
  const int64_t bytes = cached_head_bytes(args);
  NMOE_CHECK(bytes <= kMaxCachedHeadBytes, "a head too wide: {} bytes of shared memory", bytes);
}

enum class CachedAttentionWay { kTiles, kBlocks, kLatentTiles, kGroups, kRows };
struct CachedAttentionPlan {
  CachedAttentionWay way = CachedAttentionWay::kRows;
  Tensor tiles = {};  // kLatentTiles: [1 + T, 4] i32
  // Of kTiles and kLatentTiles, too: what is planned for many tokens does for few.
  CachedScores scores = {};  // kBlocks
  Tensor partials = {};      // kGroups: [tokens of a part, H, chunks, Dv] F32
  Tensor statistics = {};    // kGroups: [tokens of a part, H, chunks, 2] F32
};
inline CachedAttentionPlan plan(Planner& to, const CachedAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1);
  if (takes_blocks(args)) {
    return {.way = takes_tiles(to.kernels, args) ? CachedAttentionWay::kTiles : CachedAttentionWay::kBlocks,
            .scores = claim_scores(to.scope, args.q, args.pages, args.window)};
  }
  if (!takes_head_groups(args)) {
    check_head_fits(args);
    return {};
  }
  const int64_t chunks = std::max<int64_t>(1, args.pages.dim(1));
  CachedAttentionPlan plan{.way = CachedAttentionWay::kGroups};
  if (takes_latent_tiles(to.kernels, args)) {
    plan.way = CachedAttentionWay::kLatentTiles;
    plan.tiles = to.scope.allocate(DType::kI32, {1 + T, 4});
  }
  const int64_t token_bytes = H * chunks * args.out.dim(2) * static_cast<int64_t>(sizeof(float));
  const int64_t tokens = std::min(T, std::max(kPartialTokens, kPartialBytes / token_bytes));
  plan.partials = to.scope.allocate(DType::kF32, {tokens, H, chunks, args.out.dim(2)});
  plan.statistics = to.scope.allocate(DType::kF32, {tokens, H, chunks, 2});
  return plan;
}

// By tiles on Hopper (sm90/cached_attention.h), where what heads share is the last 64 elements of keys, else by blocks
// or by rows. Tiles and blocks have the same bits.
struct MlaExpandedAttentionPlan {
  CachedAttentionWay way = CachedAttentionWay::kRows;
  CachedScores scores = {};  // kBlocks
};
inline MlaExpandedAttentionPlan plan(Planner& to, const MlaExpandedAttention& args) {
  if (takes_blocks(args)) {
    if (takes_tiles(to.kernels, args)) return {.way = CachedAttentionWay::kTiles};
    return {.way = CachedAttentionWay::kBlocks, .scores = claim_scores(to.scope, args.q, args.pages, args.window)};
  }
  check_head_fits(args);
  return {};
}

// Of MlaCachedAttention, its attention of queries in latent space [T, H, Rkv + rope] to sums of latents [T, H, Rkv].
struct MlaCachedAttentionPlan {
  CachedAttention latents;
  CachedAttentionPlan attention;
};
inline MlaCachedAttentionPlan plan(Planner& to, const MlaCachedAttention& args) {
  if (!args.cos.defined()) {
    throw usage_error("attention without rotation in latent space is not available on GPUs yet",
                      "set run.device = \"cpu\"");
  }
  const MlaSizes sizes = mla_sizes(args);
  const DType act = args.q.dtype();
  MlaCachedAttentionPlan mla{
      .latents = {.scale = args.scale,
                  .window = args.window,
                  .q = to.scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank + sizes.rope}),
                  .slots = args.slots,
                  .positions = args.positions,
                  .pages = args.pages,
                  .keys = args.cache,
                  .values = {},
                  .num_kv_heads = 1,
                  .out = to.scope.allocate(act, {sizes.tokens, sizes.heads, sizes.rank})},
      .attention = {}};
  mla.attention = plan(to, mla.latents);
  return mla;
}

}  // namespace nmoe::cuda
