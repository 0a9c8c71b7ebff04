#include <algorithm>

#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/slot_tiles.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kThreads = 1024;
constexpr int kSizes = kThreads;  // of tiles, by their keys: a thread each
constexpr int kWords = kMaxLatentTokens / kWarp;

// A bit for each token: whether a tile begins with it, and whether one ends before it.
struct TileBits {
  unsigned begins[kWords], ends[kWords];
};

__device__ void mark_tiles(const SlotTokens& p, TileBits& bits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = static_cast<int>(threadIdx.x) - lane; first < p.num_tokens; first += kThreads) {
    const int token = first + lane;
    bool exists = false, begins = false;
    if (token < p.num_tokens) {
      const Seen seen = seen_by(p.places, token, /*window=*/0);
      exists = seen.exists();
      begins = exists;
      if (exists && token > 0 && seen.position() % p.tile_positions != 0) {
        const Seen before = seen_by(p.places, token - 1, /*window=*/0);
        begins = !before.exists() || before.slot != seen.slot || before.end != seen.position();
      }
    }
    const unsigned all_begin = __ballot_sync(kAllLanes, begins), all_end = __ballot_sync(kAllLanes, begins || !exists);
    if (lane == 0) bits.begins[first / kWarp] = all_begin, bits.ends[first / kWarp] = all_end;
  }
}

// The first token behind `token` that is not of its tile.
__device__ int tile_end(const SlotTokens& p, const TileBits& bits, int token) {
  int word = (token + 1) / kWarp;
  const int last = (p.num_tokens - 1) / kWarp;
  if (word > last) return p.num_tokens;
  unsigned set = bits.ends[word] & kAllLanes << (token + 1) % kWarp;
  while (set == 0 && word < last) set = bits.ends[++word];
  return set == 0 ? p.num_tokens : min(word * kWarp + __ffs(static_cast<int>(set)) - 1, p.num_tokens);
}

// Calls with each tile and its size, 0 for the most keys.
template <class Visit>
__device__ void for_each_tile(const SlotTokens& p, const TileBits& bits, const Visit& visit) {
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
__global__ void __launch_bounds__(kThreads) tiles_kernel(SlotTokens p) {
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

}  // namespace

void find_slot_tiles(Context& ctx, const SlotTokens& tokens) {
  NMOE_CHECK(tokens.num_tokens <= kMaxLatentTokens, "tiles of {} tokens", tokens.num_tokens);
  launch_early(ctx, tiles_kernel, grid_size(1 + ceil_div(tokens.num_tokens, kThreads / kWarp)), kThreads, 0, tokens);
}

}  // namespace nmoe::cuda::sm90
