// Tokens in slots of a cache, as tiles of attention_forward.cuh. A first kernel finds the tiles: tokens that follow
// each other in a slot, from one multiple of kTileRows positions to the next at most. Those with the most keys come
// first, so that the last ones to be worked on are short; among equals any order, since no bit depends on it.
#include <algorithm>

#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/attention.h"
#include "ops/cuda/sm90/attention_forward.cuh"
#include "ops/cuda/sm90/slot_attention.h"

namespace nmoe::cuda::sm90 {
namespace {

using namespace forward;

constexpr int kThreads = 1024;
constexpr int kSizes = kThreads;  // of tiles, by their keys: a thread each
constexpr int kWords = kMaxSlotTokens / kWarp;

struct Places {
  CachePlaces places;
  int num_tokens;
  int4* tiles;  // [1 + num_tokens]: their number, then SlotRows
  __nv_bfloat16* out;
  int64_t out_width;  // of a token
};

// A bit for each token: whether a tile begins with it, and whether one ends before it.
struct TileBits {
  unsigned begins[kWords], ends[kWords];
};

__device__ void mark_tiles(const Places& p, TileBits& bits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = static_cast<int>(threadIdx.x) - lane; first < p.num_tokens; first += kThreads) {
    const int token = first + lane;
    bool exists = false, begins = false;
    if (token < p.num_tokens) {
      const Seen seen = seen_by(p.places, token, /*window=*/0);
      exists = seen.exists();
      begins = exists;
      if (exists && token > 0 && seen.position() % kTileRows != 0) {
        const Seen before = seen_by(p.places, token - 1, /*window=*/0);
        begins = !before.exists() || before.slot != seen.slot || before.end != seen.position();
      }
    }
    const unsigned all_begin = __ballot_sync(kAllLanes, begins), all_end = __ballot_sync(kAllLanes, begins || !exists);
    if (lane == 0) bits.begins[first / kWarp] = all_begin, bits.ends[first / kWarp] = all_end;
  }
}

// The first token behind `token` that is not of its tile.
__device__ int tile_end(const Places& p, const TileBits& bits, int token) {
  int word = (token + 1) / kWarp;
  const int last = (p.num_tokens - 1) / kWarp;
  if (word > last) return p.num_tokens;
  unsigned set = bits.ends[word] & kAllLanes << (token + 1) % kWarp;
  while (set == 0 && word < last) set = bits.ends[++word];
  return set == 0 ? p.num_tokens : min(word * kWarp + __ffs(static_cast<int>(set)) - 1, p.num_tokens);
}

// Calls with each tile and its size, 0 for the most keys.
template <class Visit>
__device__ void for_each_tile(const Places& p, const TileBits& bits, const Visit& visit) {
  for (int token = static_cast<int>(threadIdx.x); token < p.num_tokens; token += kThreads) {
    if ((bits.begins[token / kWarp] >> token % kWarp & 1) == 0) continue;
    const Seen seen = seen_by(p.places, token, /*window=*/0);
    const auto begin = static_cast<int>(seen.position()), end = begin + tile_end(p, bits, token) - token;
    const auto size = static_cast<int>(int64_t{end - 1} * kSizes / p.places.capacity);
    visit(make_int4(static_cast<int>(seen.slot), begin, end, token), kSizes - 1 - size);
  }
}

// The sum of what the threads before this one have.
__device__ int sum_before(int count, int (&warp_sums)[kWarp]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int through = count;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += below;
  }
  if (lane == kWarp - 1) warp_sums[warp] = through;
  __syncthreads();
  int before = through - count;
  for (int i = 0; i < warp; ++i) before += warp_sums[i];
  return before;
}

// The first block makes the list; the others see to the tokens that have no place, a warp each.
__global__ void __launch_bounds__(kThreads) tiles_kernel(Places p) {
  __shared__ TileBits bits;
  __shared__ int next[kSizes], warp_sums[kWarp];
  static_assert(kThreads / kWarp == kWarp);
  begin_behind_work_before();
  const auto thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x > 0) {
    const int token = (static_cast<int>(blockIdx.x) - 1) * (kThreads / kWarp) + thread / kWarp;
    if (token >= p.num_tokens || seen_by(p.places, token, /*window=*/0).exists()) return;
    for (int64_t i = thread % kWarp; i < p.out_width; i += kWarp) {
      p.out[token * p.out_width + i] = from_float<__nv_bfloat16>(__int_as_float(0x7FC00000));
    }
    return;
  }
  next[thread] = 0;
  mark_tiles(p, bits);
  __syncthreads();
  for_each_tile(p, bits, [&](const int4&, int size) { atomicAdd(&next[size], 1); });
  __syncthreads();
  const int count = next[thread], before = sum_before(count, warp_sums);
  next[thread] = before;
  if (thread == kThreads - 1) p.tiles[0] = make_int4(before + count, 0, 0, 0);
  __syncthreads();
  for_each_tile(p, bits, [&](const int4& tile, int size) { p.tiles[1 + atomicAdd(&next[size], 1)] = tile; });
}

static_assert(sizeof(SlotRows) == sizeof(int4));

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
  auto* const found = static_cast<int4*>(tiles.raw());
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
                            .slot_rows = reinterpret_cast<const SlotRows*>(found + 1),
                            .num_slot_rows = reinterpret_cast<const int*>(found)};
  const Places places{.places = {.slots = args.slots.template data<int32_t>(),
                                 .positions = args.positions.template data<int32_t>(),
                                 .num_slots = keys.v.num_seqs,
                                 .capacity = keys.v.seq_len},
                      .num_tokens = static_cast<int>(T),
                      .tiles = found,
                      .out = attention.out,
                      .out_width = H * L::kValueSize};
  launch_early(ctx, tiles_kernel, grid_size(1 + ceil_div<int64_t>(T, kThreads / kWarp)), kThreads, 0, places);
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
  NMOE_CHECK(args.q.dim(0) <= kMaxSlotTokens, "attention of {} tokens to a cache", args.q.dim(0));
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
