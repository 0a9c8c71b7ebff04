// Attention of many tokens in latent space: 16 heads share keys of 576 values, of which the first 512 are the value.
//
// A block has the 64 rows of four neighbouring tokens' heads and goes through the chunks of keys that they see, 128
// positions each, in ascending order. Two consumer warpgroups work on them:
//
//   s = q k^T        each has one of the chunk's two tiles of 64 keys: two chains of wgmma, one of the odd 16 values
//   and
//                    one of the even
//   p = exp(s - h)   h: a row's highest score of the tiles up to this one, which both tell each other
//   part = p v       each has half of the values' columns, of both tiles, 64 at a time
//   o, part -> o     as chunks are added up (primitives/chunk_sums.cuh)
//
// That is the order of kernels/attention/cached_attention_groups.cu, whose blocks have a chunk each; a second kernel
// adds those up. p lies where the last 64 values of its tile's keys were, which are nobody's values.
//
// Keys come by TMA in panels of 64 values: a panel of both tiles is free as soon as the warpgroup that has its columns
// is done with them, and is filled with the next chunk's while the others are being multiplied. A chunk moves 144 KiB
// from L2 for 17.8 MFLOP, so that L2 is nearly as busy as tensor cores are.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "ops/cuda/plans/cached_attention.h"
#include "ops/cuda/primitives/chunk_sums.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/latent_attention.h"
#include "ops/cuda/sm90/mbarrier.cuh"
#include "ops/cuda/sm90/quad_rows.cuh"
#include "ops/cuda/sm90/slot_tiles.h"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"
#include "ops/cuda/vendor/tensor_map.h"

namespace nmoe::cuda::sm90 {
namespace {

constexpr int kHeads = kLatentHeads, kKey = kLatentKey, kValue = kLatentValue;
constexpr int kRows = kPanel, kTokens = kRows / kHeads;  // of a block; a warp has the heads of a token
constexpr int kKeys = kPanel, kTiles = 2;                // of a chunk
constexpr int kKeyPanels = kKey / kPanel, kValuePanels = kValue / kPanel;
constexpr int kConsumers = 2, kPieces = kValuePanels / kConsumers;  // of 64 columns, a consumer's
constexpr int kWarps = kWarpgroup / kWarp;
constexpr int kSums = kPanel / 2;  // of a thread, of 64 x 64
constexpr int kBothBarrier = 1, kOwnBarrier = 2;
using Registers = WarpgroupRegisters<1, 24, kConsumers, 240>;
static_assert(kChunkKeys == kTiles * kKeys && kConsumers == kTiles && kHeads * kWarps == kRows);
static_assert(kKeyPanels == kValuePanels + 1, "p lies where the last panel of keys was");

struct Barriers {
  uint64_t queries_full, queries_empty;
  uint64_t full[kTiles][kKeyPanels];
  uint64_t empty[kKeyPanels];  // a panel of both tiles
};
// What consumers tell each other of a chunk, of each row.
struct Told {
  float highest[kTiles][kRows];  // score of a tile
  float sum[kTiles][kRows];      // of its exponentials
};
constexpr int kMatrixBytes = kKeyPanels * kPanelBytes;  // queries, or a tile of keys
constexpr int kToldAt = (1 + kTiles) * kMatrixBytes;
constexpr int kBarriersAt = kToldAt + static_cast<int>(sizeof(Told));
constexpr int kSharedBytes = kBarriersAt + static_cast<int>(sizeof(Barriers));
static_assert(kSharedBytes <= kMaxSharedBytes && kBarriersAt % alignof(Barriers) == 0);

struct LatentAttention {
  CUtensorMap q, keys;  // [T * H, key]; [Z, C, key]
  __nv_bfloat16* out;   // [T, H, value]
  const SlotRows* tiles;
  const int* num_tiles;
  int window;  // 0: none
  float scale;
};

// The tiles of a block, and the chunks of keys that one's rows see.
struct Schedule {
  const LatentAttention& a;
  int turn = 0;

  __device__ bool next(SlotRows& tile) {
    const int n = static_cast<int>(gridDim.x), b = static_cast<int>(blockIdx.x);
    const int place = turn * n + (turn % 2 == 0 ? b : n - 1 - b);
    if (place >= *a.num_tiles) return false;
    ++turn;
    tile = a.tiles[place];
    return true;
  }
};
__device__ int first_position(const SlotRows& tile) { return tile.begin / kTokens * kTokens; }
__device__ int low_key(const LatentAttention& a, int position) {
  return a.window > 0 ? max(0, position - a.window + 1) : 0;
}
__device__ int first_chunk(const LatentAttention& a, const SlotRows& tile) {
  return low_key(a, tile.begin) / kChunkKeys;
}
__device__ int last_chunk(const SlotRows& tile) { return (tile.end - 1) / kChunkKeys; }

__device__ std::byte* key_panel(std::byte* base, int tile, int panel) {
  return base + (1 + tile) * kMatrixBytes + panel * kPanelBytes;
}

// By a thread.
__device__ void load(const LatentAttention& a, std::byte* base, Barriers& barriers) {
  Schedule schedule{a};
  SlotRows tile;
  int parity = 0;  // of a chunk
  for (int tile_parity = 0; schedule.next(tile); tile_parity ^= 1) {
    mbarrier_wait(&barriers.queries_empty, tile_parity ^ 1);
    mbarrier_arrive_expect_tx(&barriers.queries_full, kMatrixBytes);
    const int row = (tile.token - (tile.begin - first_position(tile))) * kHeads;
    for (int i = 0; i < kKeyPanels; ++i) {
      tma_load(a.q, i * kPanel, row, base + i * kPanelBytes, &barriers.queries_full);
    }
    for (int chunk = first_chunk(a, tile); chunk <= last_chunk(tile); ++chunk, parity ^= 1) {
      for (int i = 0; i < kKeyPanels; ++i) {
        // In the order in which they become free.
        const int panel = i < kValuePanels ? i / kConsumers + i % kConsumers * kPieces : i;
        mbarrier_wait(&barriers.empty[panel], parity ^ 1);
        for (int t = 0; t < kTiles; ++t) {
          uint64_t* const full = &barriers.full[t][panel];
          mbarrier_arrive_expect_tx(full, kPanelBytes);
          tma_load(a.keys, {panel * kPanel, 0, chunk * kChunkKeys + t * kKeys, tile.slot}, key_panel(base, t, panel),
                   full);
        }
      }
    }
  }
}

// What is done to sums before comes before, and what is done behind comes behind: the compiler does not know that a
// wgmma is under way.
__device__ __forceinline__ void pin(float (&sums)[kSums]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// The even and the odd 16s of q k^T, of the tile of a consumer's own. Done at return.
__device__ __forceinline__ void multiply_keys(std::byte* base, Barriers& barriers, int consumer, int parity,
                                              float (&even)[kSums], float (&odd)[kSums]) {
  const uint64_t queries = wgmma_descriptor(base), keys = wgmma_descriptor(key_panel(base, consumer, 0));
#pragma unroll
  for (int panel = 0; panel < kKeyPanels; ++panel) {
    mbarrier_wait(&barriers.full[consumer][panel], parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPanel / kProductDepth; ++step) {
      const uint64_t at = panel * (kPanelBytes / 16) + step * wgmma_descriptor_step<true>();
      wgmma_n64<false, false>(step % 2 == 0 ? even : odd, queries + at, keys + at, panel > 0 || step > 1);
    }
  }
  wgmma_commit_group();
  wgmma_wait_group<0>();
}

// A thread's two rows, h = 0 and 1.
struct RowPair {
  float highest[2] = {-INFINITY, -INFINITY};
  float total[2] = {};
};
// What becomes of a chunk's sums: those of the first tile fade, then they are added to those of earlier chunks.
struct ChunkRows {
  float fade[2];
  ChunkFactors factors[2];
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
}

// The sum of a row's 64 exponentials, of which a quad of lanes has w[4 j + 2 h + p] of column 8 j + 2 q + p each: as a
// warp adds them up whose lane l has columns l and l + 32.
__device__ __forceinline__ float sum_of_row(const float (&w)[kSums], int h) {
  float sums[2];
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    float pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = w[4 * j + 2 * h + p] + w[4 * (j + 4) + 2 * h + p];
    sums[p] = (pairs[0] + pairs[2]) + (pairs[1] + pairs[3]);
    sums[p] += __shfl_xor_sync(kAllLanes, sums[p], 2);
    sums[p] += __shfl_xor_sync(kAllLanes, sums[p], 1);
  }
  return sums[0] + sums[1];
}

// Scores of a consumer's own tile become p in shared memory, and rows follow the chunk. low, high: the first and last
// key that the warp's token sees, counted from the tile's first.
__device__ __forceinline__ ChunkRows weigh(const LatentAttention& a, std::byte* base, Told& told, int consumer, int low,
                                           int high, float (&even)[kSums], const float (&odd)[kSums], RowPair& rows) {
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4, first_row = warp * kHeads + g;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int key = i / 4 * 8 + 2 * q + i % 2;
    even[i] = key >= low && key <= high ? __fmul_rn(even[i] + odd[i], a.scale) : -INFINITY;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float highest = -INFINITY;
#pragma unroll
    for (int i = 2 * h; i < kSums; i += 4) highest = fmaxf(highest, fmaxf(even[i], even[i + 1]));
    highest = quad_max(highest);
    if (q == 0) told.highest[consumer][first_row + 8 * h] = highest;
  }
  named_barrier_sync(kBothBarrier, kConsumers * kWarpgroup);
  ChunkRows chunk;
  float of_chunk[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + 8 * h;
    const float first = told.highest[0][row];
    of_chunk[h] = fmaxf(first, told.highest[1][row]);
    chunk.fade[h] = of_chunk[h] == -INFINITY ? 1.0F : expf(first - of_chunk[h]);
    const float own = consumer == 0 ? first : of_chunk[h];
    const bool none = own == -INFINITY;
#pragma unroll
    for (int i = 2 * h; i < kSums; i += 4) {
      even[i] = none ? 0.0F : expf(even[i] - own);
      even[i + 1] = none ? 0.0F : expf(even[i + 1] - own);
    }
    const float sum = sum_of_row(even, h);
    if (q == 0) told.sum[consumer][row] = sum;
    std::byte* const target = key_panel(base, consumer, kValuePanels) + row * (kPanel * 2) + q * 4;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      *reinterpret_cast<uint32_t*>(target + (j ^ g) * 16) = bf16_pair(even[4 * j + 2 * h], even[4 * j + 2 * h + 1]);
    }
  }
  fence_proxy_async();
  named_barrier_sync(kBothBarrier, kConsumers * kWarpgroup);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + 8 * h;
    const float total = add_tile(told.sum[0][row], chunk.fade[h], told.sum[1][row]);
    chunk.factors[h] = follow_chunk(rows.highest[h], of_chunk[h]);
    rows.total[h] = add_chunk(chunk.factors[h], rows.total[h], total);
  }
  return chunk;
}

// Zeros for the values of a chunk's keys from `first` on, of which nobody knows what they are: a consumer's own
// columns.
__device__ void clear_values(std::byte* base, int consumer, int first) {
  constexpr int kRowPieces = kPanel * 2 / 16;
  for (int t = 0; t < kTiles; ++t) {
    const int begin = min(max(first - t * kKeys, 0), kKeys) * kRowPieces;
    for (int piece = 0; piece < kPieces; ++piece) {
      auto* const rows = reinterpret_cast<uint4*>(key_panel(base, t, consumer * kPieces + piece));
      for (int i = begin + static_cast<int>(threadIdx.x) % kWarpgroup; i < kKeys * kRowPieces; i += kWarpgroup) {
        rows[i] = make_uint4(0, 0, 0, 0);
      }
    }
  }
  fence_proxy_async();
  named_barrier_sync(kOwnBarrier + consumer, kWarpgroup);
}

// o = what the chunk makes of it. Two of a consumer's pieces are under way at a time, in x and y.
__device__ __forceinline__ void multiply_values(std::byte* base, Barriers& barriers, int consumer,
                                                const ChunkRows& chunk, float (&x)[kSums], float (&y)[kSums],
                                                float (&o)[kPieces][kSums]) {
  uint64_t weights[kTiles], values[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    weights[t] = wgmma_descriptor(key_panel(base, t, kValuePanels));
    values[t] = wgmma_descriptor(key_panel(base, t, consumer * kPieces));
  }
  const auto multiply = [&](int t, int piece, float(&part)[kSums]) {
    pin(part);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / kProductDepth; ++step) {
      wgmma_n64<false, true>(part, weights[t] + step * wgmma_descriptor_step<true>(),
                             values[t] + piece * (kPanelBytes / 16) + step * wgmma_descriptor_step<false>(),
                             t > 0 || step > 0);
    }
    wgmma_commit_group();
  };
  const auto go_on = [&](int piece, float(&part)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) part[i] *= chunk.fade[i / 2 % 2];
    multiply(1, piece, part);
  };
  const auto finish = [&](int piece, const float(&part)[kSums], float(&sums)[kSums]) {
    if (threadIdx.x % kWarp == 0) mbarrier_arrive(&barriers.empty[consumer * kPieces + piece]);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = add_chunk(chunk.factors[i / 2 % 2], sums[i], part[i]);
  };
  static_assert(kPieces == 4);
  multiply(0, 0, x);
  multiply(0, 1, y);
  wgmma_wait_group<1>();
  go_on(0, x);
  wgmma_wait_group<1>();
  go_on(1, y);
  wgmma_wait_group<1>();
  finish(0, x, o[0]);
  multiply(0, 2, x);
  wgmma_wait_group<1>();
  finish(1, y, o[1]);
  multiply(0, 3, y);
  wgmma_wait_group<1>();
  go_on(2, x);
  wgmma_wait_group<1>();
  go_on(3, y);
  wgmma_wait_group<1>();
  finish(2, x, o[2]);
  wgmma_wait_group<0>();
  if (threadIdx.x % kWarp == 0) mbarrier_arrive(&barriers.empty[kValuePanels]);
  finish(3, y, o[3]);
}

// The warp's token, whose first head is row `row` of all: a consumer's columns, 16 bytes a lane and time.
__device__ void store_token(const LatentAttention& a, int64_t row, int consumer, const RowPair& rows,
                            const float (&o)[kPieces][kSums]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = 1.0F / rows.total[h];
    __nv_bfloat16* const target = a.out + (row + lane / 4 + 8 * h) * kValue + consumer * kPieces * kPanel;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int first = 0; first < kPanel / 8; first += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 4 * (first + i) + 2 * h;
          words[i] = bf16_pair(o[piece][j] * factor, o[piece][j + 1] * factor);
        }
        transpose_in_quad(words);
        *reinterpret_cast<uint4*>(target + piece * kPanel + 8 * (first + lane % 4)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

// The same value for the warp, and known to be.
__device__ int of_first_lane(int value) { return __shfl_sync(kAllLanes, value, 0); }

__device__ void attend(const LatentAttention& a, std::byte* base, Told& told, Barriers& barriers) {
  const int consumer = of_first_lane(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  Schedule schedule{a};
  SlotRows tile;
  int parity = 0;
  for (int tile_parity = 0; schedule.next(tile); tile_parity ^= 1) {
    const int position = first_position(tile) + warp, low = low_key(a, position);
    const int first = of_first_lane(first_chunk(a, tile)), last = of_first_lane(last_chunk(tile));
    const int end = of_first_lane(tile.end);
    RowPair rows;
    float x[kSums], y[kSums], o[kPieces][kSums];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (float& sum : o[piece]) sum = 0.0F;
    }
    mbarrier_wait(&barriers.queries_full, tile_parity);
    for (int chunk = first; chunk <= last; ++chunk, parity ^= 1) {
      multiply_keys(base, barriers, consumer, parity, x, y);
      if (chunk == last && threadIdx.x % kWarp == 0) mbarrier_arrive(&barriers.queries_empty);
      const int first_key = chunk * kChunkKeys + consumer * kKeys;
      const ChunkRows of_chunk = weigh(a, base, told, consumer, low - first_key, position - first_key, x, y, rows);
      for (int piece = 0; piece < kPieces; ++piece) {
        mbarrier_wait(&barriers.full[1 - consumer][consumer * kPieces + piece], parity);
      }
      if ((chunk + 1) * kChunkKeys > end) clear_values(base, consumer, end - chunk * kChunkKeys);
      multiply_values(base, barriers, consumer, of_chunk, x, y, o);
    }
    if (position >= tile.begin && position < tile.end) {
      store_token(a, static_cast<int64_t>(tile.token + position - tile.begin) * kHeads, consumer, rows, o);
    }
  }
}

__global__ void __launch_bounds__(Registers::kThreads, 1) latent_kernel(const __grid_constant__ LatentAttention a) {
  extern __shared__ __align__(kPanelAlignment) std::byte base[];
  auto& told = *reinterpret_cast<Told*>(base + kToldAt);
  auto& barriers = *reinterpret_cast<Barriers*>(base + kBarriersAt);
  if (threadIdx.x == 0) {
    tma_prefetch_map(a.q);
    tma_prefetch_map(a.keys);
    mbarrier_init(&barriers.queries_full, 1);
    mbarrier_init(&barriers.queries_empty, kConsumers * kWarps);
    for (int panel = 0; panel < kKeyPanels; ++panel) {
      for (int t = 0; t < kTiles; ++t) mbarrier_init(&barriers.full[t][panel], 1);
      mbarrier_init(&barriers.empty[panel], panel < kValuePanels ? kWarps : kConsumers * kWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<Registers::kProducer>();
    if (threadIdx.x == 0) load(a, base, barriers);
  } else {
    setmaxnreg_inc<Registers::kConsumer>();
    attend(a, base, told, barriers);
  }
}

}  // namespace

void latent_attention(Context& ctx, const CachedAttention& args, const Tensor& tiles) {
  const int64_t T = args.q.dim(0), C = args.keys.dim(1);
  NMOE_CHECK(args.q.stride() == kHeads * kKey && aligned16(args.q.raw()) && aligned16(args.keys.raw()) &&
                 aligned16(args.out.raw()),
             "latent attention of rows that are apart, or not aligned to 16 bytes");
  auto* const out = args.out.data<__nv_bfloat16>();
  find_slot_tiles(ctx, {.places = {.slots = args.slots.data<int32_t>(),
                                   .positions = args.positions.data<int32_t>(),
                                   .num_slots = args.keys.dim(0),
                                   .capacity = C},
                        .num_tokens = static_cast<int>(T),
                        .tile_positions = kTokens,
                        .tiles = static_cast<int4*>(tiles.raw()),
                        .out = out,
                        .out_width = kHeads * kValue});
  const LatentAttention attention{.q = panel_map(args.q.raw(), T * kHeads, kKey),
                                  .keys = head_map({.data = args.keys.raw(),
                                                    .num_seqs = args.keys.dim(0),
                                                    .seq_len = C,
                                                    .heads = 1,
                                                    .size = kKey,
                                                    .stride = kKey,
                                                    .head_stride = kKey},
                                                   kKeys),
                                  .out = out,
                                  .tiles = rows_of_tiles(tiles),
                                  .num_tiles = num_of_tiles(tiles),
                                  .window = static_cast<int>(std::min<int64_t>(args.window, C)),
                                  .scale = static_cast<float>(args.scale)};
  allow_dynamic_shared(latent_kernel, kSharedBytes);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(T, ctx.num_sms));
  latent_kernel<<<blocks, Registers::kThreads, kSharedBytes, ctx.stream>>>(attention);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
