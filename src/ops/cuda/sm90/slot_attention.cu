// Tokens in slots of a cache, as tiles of attention_forward.cuh.
#include <algorithm>

#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_forward.cuh"
#include "ops/cuda/sm90/slot_attention.h"
#include "ops/cuda/sm90/slot_tiles.h"

namespace nmoe::cuda::sm90 {
namespace {

using namespace forward;

// Heads of a cache [Z, C, width].
HeadRows cached_heads(const Tensor& cache, int64_t first, int64_t heads, int64_t size, int64_t step) {
  return {.data = static_cast<const uint16_t*>(cache.raw()) + first,
          .num_seqs = cache.dim(0),
          .seq_len = cache.dim(1),
          .heads = heads,
          .size = size,
          .stride = cache.dim(2),
          .head_stride = step};
}

template <class L, class Args>
void launch(Context& ctx, const Args& args, const KeyValueRows& keys, const Tensor& tiles) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1);
  const HeadRows q = head_rows({.num_seqs = 1, .seq_len = T}, args.q);
  const Attention attention{.q = head_map(q, kRows),
                            .k = head_map(keys.k, L::kKeys),
                            .k_last = head_map(keys.k_last, L::kKeys),
                            .v = head_map(keys.v, L::kKeys),
                            .last_heads = static_cast<int>(keys.k_last.heads),
                            .out = args.out.template data<__nv_bfloat16>(),
                            .lse = nullptr,
                            .first_keys = nullptr,
                            .num_seqs = 0,
                            .seq_len = 0,
                            .heads = static_cast<int>(H),
                            .group = static_cast<int>(H / keys.v.heads),
                            .window = static_cast<int>(std::min<int64_t>(args.window, keys.v.seq_len)),
                            .scale = static_cast<float>(args.scale),
                            .tiles = 0,
                            .missing = 0,
                            .section = 0,
                            .slot_rows = rows_of_tiles(tiles),
                            .num_slot_rows = num_of_tiles(tiles)};
  find_slot_tiles(ctx, {.places = {.slots = args.slots.template data<int32_t>(),
                                   .positions = args.positions.template data<int32_t>(),
                                   .num_slots = keys.v.num_seqs,
                                   .capacity = keys.v.seq_len},
                        .num_tokens = static_cast<int>(T),
                        .tile_positions = kTileRows,
                        .tiles = static_cast<int4*>(tiles.raw()),
                        .out = attention.out,
                        .out_width = H * L::kValueSize});
  allow_dynamic_shared(attention_kernel<L>, L::kSharedBytes);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(T * H, ctx.num_sms));
  attention_kernel<L><<<blocks, L::Registers::kThreads, L::kSharedBytes, ctx.stream>>>(attention);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

template <class Args>
void launch_for_sizes(Context& ctx, const Args& args, const KeyValueRows& keys, const Tensor& tiles) {
  constexpr auto kSlots = QueryRows::kSlots;
  const int64_t key_size = args.q.dim(2);
  NMOE_CHECK(aligned16(args.q.rows_raw()) && args.q.stride() % 8 == 0 && aligned16(keys.k.data) &&
                 aligned16(keys.k_last.data) && aligned16(keys.v.data) && aligned16(args.out.raw()),
             "attention of rows that are not aligned to 16 bytes");
  if (key_size == 64) return launch<Layout<64, 64, 128, 4, kSlots>>(ctx, args, keys, tiles);
  if (key_size == 128) return launch<Layout<128, 128, 64, 4, kSlots>>(ctx, args, keys, tiles);
  launch<Layout<192, 128, 64, 3, kSlots>>(ctx, args, keys, tiles);
}

}  // namespace

void slot_attention(Context& ctx, const CachedAttention& args, const Tensor& tiles) {
  const int64_t G = args.num_kv_heads, Dk = args.q.dim(2), Dv = args.out.dim(2), rest = Dk - kLastKeySize;
  const HeadRows last = cached_heads(args.keys, rest, G, kLastKeySize, Dk);
  launch_for_sizes(ctx, args,
                   {.k = rest > 0 ? cached_heads(args.keys, 0, G, rest, Dk) : last,
                    .k_last = last,
                    .v = cached_heads(args.values, 0, G, Dv, Dv)},
                   tiles);
}

void slot_attention(Context& ctx, const MlaExpandedAttention& args, const Tensor& tiles) {
  const int64_t H = args.q.dim(1), Dv = args.out.dim(2), nope = args.q.dim(2) - args.k_rope.dim(2);
  launch_for_sizes(ctx, args,
                   {.k = cached_heads(args.kv, 0, H, nope, nope + Dv),
                    .k_last = cached_heads(args.k_rope, 0, 1, kLastKeySize, kLastKeySize),
                    .v = cached_heads(args.kv, nope, H, Dv, nope + Dv)},
                   tiles);
}

}  // namespace nmoe::cuda::sm90
