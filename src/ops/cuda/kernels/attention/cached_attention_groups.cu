// A block has up to 16 rows of mma.m16n8k16: the query heads of a key/value head, of one token or of as many tokens as
// there is room for (places beyond are zeros), and a chunk of positions, in tiles of 64 keys that begin at multiples of
// 64: scores by eight warps, eight keys each, an online softmax (Milakov and Gimelshein, arXiv 1805.02867), a warp two
// rows, and values, a warp every eighth tile of eight columns. MLA's sixteen heads read the same latent keys, which are
// the values too: they are read once. A second kernel adds up the chunks in their order (Flash-Decoding's split; Dao et
// al., 2023).
//
// Of many tokens, neighbours are most often of one slot: they share what is read of it. Finite keys that one of them
// does not see weigh nothing there, to the bit (zero times what is not finite is NaN), since tiles and chunks are of
// absolute positions: what a row's sums depend on are sizes, its position and the window. Single tokens have blocks of
// their own.
//
// Bound by reading the cache when there are rows enough to fill the device; a single one has a block for each chunk.
#include <algorithm>

#include "ops/cuda/kernels/attention/cached_attention_groups.h"
#include "ops/cuda/kernels/attention/cached_places.cuh"
#include "ops/cuda/primitives/chunk_sums.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
#include "ops/cuda/primitives/row_softmax.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kHeads = kGroupHeads;
constexpr int kKeys = 64;
constexpr int kPad = 8;  // of rows in shared memory: the eight that ldmatrix reads then fall in different banks
constexpr int kWeightPitch = kKeys + kPad, kScorePitch = kKeys + 4;
constexpr int kValueTiles = kMaxGroupValue / (8 * kWarps);  // of a warp
constexpr int kSumThreads = 128;
static_assert(kChunkKeys % kKeys == 0 && kChunkKeys == kPagePositions);
static_assert(kKeys == 8 * kWarps && kKeys == 2 * kWarp && kHeads == 2 * kWarps);

struct Groups {
  const Bf16* q;  // [T, H, key], apart
  CachePlaces places;
  const Bf16* keys;    // [P, kPagePositions, kv_heads * key]
  const Bf16* values;  // [P, kPagePositions, value_width]
  float* partials;     // [T, H, chunks, value]: sums of values by exp(score - highest)
  float2* statistics;  // [T, H, chunks]: highest score, sum of exp(score - highest)
  Bf16* out;           // [T, H, value]
  int num_heads, num_kv_heads, key, value, num_chunks;
  int num_tokens, block_tokens;     // of all, of a block
  int64_t query_stride;             // from a token's queries to the next's
  int64_t value_width, value_step;  // of a position; from a key/value head to the next
  int64_t window;
  float scale;
  bool own_values;
  const float* sinks;  // of query heads, or null

  __host__ __device__ int key_pitch() const { return key + kPad; }
  __host__ __device__ int value_pitch() const { return own_values ? value + kPad : key_pitch(); }
};

// Rows of `width` values, row r from source(r) on; those from num_rows on zeros. Of wide rows, which keep its lanes
// busy, a warp has every eighth.
template <class Source>
__device__ void load_rows(Bf16* target, int pitch, int rows, const Source& source, int width, int num_rows) {
  if (width < kWarp * 8) {
    const int pieces = width / 8;
    for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += kThreads) {
      const int row = i / pieces, column = i % pieces * 8;
      const bool exists = row < num_rows;
      copy_async16(target + row * pitch + column, source(exists ? row : 0) + (exists ? column : 0), exists);
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 4
  for (int row = warp; row < rows; row += kWarps) {
    const bool exists = row < num_rows;
    const Bf16* const from = source(exists ? row : 0);
    for (int column = lane * 8; column < width; column += kWarp * 8) {
      copy_async16(target + row * pitch + column, from + column, exists);
    }
  }
}

// The row of the slot's position 0 if all its pages lay beside that of `position`. A chunk is a page.
__device__ int64_t first_row_of(const Groups& p, const Seen& seen, int64_t position) {
  return p.places.row_of(seen.slot, position) - position;
}

// What is seen of a chunk.
__device__ void prefetch_chunk(const Groups& p, const Seen& seen, int64_t chunk_begin, int64_t chunk_end) {
  const int64_t begin = max(seen.begin, chunk_begin), num_keys = min(seen.end, chunk_end) - begin;
  if (num_keys <= 0) return;
  const int32_t page = __ldcg(p.places.pages + seen.slot * p.places.num_blocks + begin / kPagePositions);
  prefetch_rows(p.keys + CachePlaces::row_in(page, begin) * p.key, num_keys, p.key);
}

__global__ void __launch_bounds__(kThreads) chunk_kernel(Groups p) {
  extern __shared__ uint4 shared[];
  auto* queries = reinterpret_cast<Bf16*>(shared);                           // [kHeads, key_pitch]
  Bf16* const keys = queries + kHeads * p.key_pitch();                       // [kKeys, key_pitch]
  Bf16* const values = p.own_values ? keys + kKeys * p.key_pitch() : keys;   // [kKeys, value_pitch]
  Bf16* const weights = values + kKeys * p.value_pitch();                    // [kHeads, kWeightPitch]
  auto* scores = reinterpret_cast<float*>(weights + kHeads * kWeightPitch);  // [kHeads, kScorePitch]
  float* const fades = scores + kHeads * kScorePitch;                        // [kHeads]

  __shared__ int64_t row_begin[kHeads], row_end[kHeads];  // positions that a row sees
  const int kv_head = static_cast<int>(blockIdx.y), heads = p.num_heads / p.num_kv_heads;
  const int64_t chunk_begin = static_cast<int64_t>(blockIdx.z) * kChunkKeys, chunk_end = chunk_begin + kChunkKeys;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;               // of results: rows g and g + 8, columns 2 q and 2 q + 1
  const int in_matrix = lane % 8, matrix = lane / 8;  // as ldmatrix takes addresses
  const int64_t key_width = static_cast<int64_t>(p.num_kv_heads) * p.key;
  const int first_token = static_cast<int>(blockIdx.x) * p.block_tokens;
  const int end_token = min(first_token + p.block_tokens, p.num_tokens);

  let_next_start();
  if (p.num_kv_heads == 1) prefetch_chunk(p, expected_of(p.places, end_token - 1, p.window), chunk_begin, chunk_end);
  wait_for_work_before();
  int next_run = first_token;
  while (next_run < end_token) {
    // Tokens of one slot, and what they see together.
    const int run = next_run++;
    Seen seen = seen_by(p.places, run, p.window);
    for (; next_run < end_token; ++next_run) {
      const Seen other = seen_by(p.places, next_run, p.window);
      if (other.slot != seen.slot || !other.exists() || !seen.exists()) break;
      seen.begin = min(seen.begin, other.begin), seen.end = max(seen.end, other.end);
    }
    const int64_t begin = max(seen.begin / kKeys * kKeys, chunk_begin), end = min(seen.end, chunk_end);
    if (begin >= end) continue;
    const int num_rows = (next_run - run) * heads;
    const auto head_of = [&](int row) {  // among all tokens' heads
      return static_cast<int64_t>(run + row / heads) * p.num_heads + kv_head * heads + row % heads;
    };
    __syncthreads();  // what was there has been read
    if (threadIdx.x < kHeads) {
      const int row = static_cast<int>(threadIdx.x);
      const Seen own = row < num_rows ? seen_by(p.places, run + row / heads, p.window) : Seen{0, 0, 0};
      row_begin[row] = own.begin, row_end[row] = own.end;
    }
    const int64_t first_row = first_row_of(p, seen, begin);
    const Bf16* const slot_keys = p.keys + first_row * key_width + kv_head * p.key;
    const Bf16* const slot_values = p.values + first_row * p.value_width + kv_head * p.value_step;
    const auto query_of = [&](int row) {
      return p.q + (run + row / heads) * p.query_stride + (kv_head * heads + row % heads) * p.key;
    };
    load_rows(queries, p.key_pitch(), kHeads, query_of, p.key, num_rows);
    float sums[kValueTiles][4] = {};
    float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of rows 2 warp and 2 warp + 1
    for (int64_t tile = begin; tile < end; tile += kKeys) {
      const int num_keys = static_cast<int>(min(int64_t{kKeys}, end - tile));
      load_rows(
          keys, p.key_pitch(), kKeys, [&](int row) { return slot_keys + (tile + row) * key_width; }, p.key, num_keys);
      if (p.own_values) {
        load_rows(
            values, p.value_pitch(), kKeys, [&](int row) { return slot_values + (tile + row) * p.value_width; },
            p.value, num_keys);
      }
      commit_copies();
      wait_copies<0>();
      __syncthreads();

      float even[4] = {}, odd[4] = {};  // 16s of what is summed over: two chains of instructions
      const Bf16* const query_row = queries + (matrix % 2 * 8 + in_matrix) * p.key_pitch() + matrix / 2 * 8;
      const Bf16* const key_row = keys + (warp * 8 + in_matrix) * p.key_pitch() + matrix * 8;
#pragma unroll 4
      for (int k = 0; k < p.key; k += 32) {
        unsigned first[4], second[4], b[4];
        load_matrices<false>(query_row + k, first);
        load_matrices<false>(query_row + k + 16, second);
        load_matrices<false>(key_row + k, b);
        gemm::multiply_add(even, first, b[0], b[1]);
        gemm::multiply_add(odd, second, b[2], b[3]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[(g + c / 2 * 8) * kScorePitch + warp * 8 + q * 2 + c % 2] = (even[c] + odd[c]) * p.scale;
      }
      __syncthreads();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 2 * warp + h;
        const auto score_of = [&](int key) {
          const bool sees = tile + key >= row_begin[row] && tile + key < row_end[row];
          return sees ? scores[row * kScorePitch + key] : -INFINITY;
        };
        const float score_a = score_of(lane), score_b = score_of(lane + kWarp);
        const float new_highest = fmaxf(highest[h], warp_max(fmaxf(score_a, score_b)));
        const bool none = new_highest == -INFINITY;  // nothing seen yet
        const float weight_a = none ? 0.0F : expf(score_a - new_highest);
        const float weight_b = none ? 0.0F : expf(score_b - new_highest);
        const float fade = none ? 1.0F : expf(highest[h] - new_highest);
        total[h] = add_tile(total[h], fade, warp_sum(weight_a + weight_b));
        highest[h] = new_highest;
        weights[row * kWeightPitch + lane] = from_float<Bf16>(weight_a);
        weights[row * kWeightPitch + lane + kWarp] = from_float<Bf16>(weight_b);
        if (lane == 0) fades[row] = fade;
      }
      __syncthreads();

      const float fade_low = fades[g], fade_high = fades[g + 8];
      unsigned a[kKeys / 16][4];
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        load_matrices<false>(weights + (matrix % 2 * 8 + in_matrix) * kWeightPitch + k * 16 + matrix / 2 * 8, a[k]);
      }
#pragma unroll
      for (int i = 0; i < kValueTiles; ++i) {
        const int column = (i * kWarps + warp) * 8;
        if (column >= p.value) continue;  // the whole warp
        sums[i][0] *= fade_low, sums[i][1] *= fade_low, sums[i][2] *= fade_high, sums[i][3] *= fade_high;
#pragma unroll
        for (int k = 0; k < kKeys; k += 32) {
          unsigned b[4];
          load_matrices<true>(values + (k + lane) * p.value_pitch() + column, b);
          gemm::multiply_add(sums[i], a[k / 16], b[0], b[1]);
          gemm::multiply_add(sums[i], a[k / 16 + 1], b[2], b[3]);
        }
      }
      __syncthreads();  // the tile may be overwritten
    }

    const auto sees_some = [&](int row) { return max(row_begin[row], chunk_begin) < min(row_end[row], chunk_end); };
    const int chunk = static_cast<int>(blockIdx.z);
#pragma unroll
    for (int i = 0; i < kValueTiles; ++i) {
      const int column = (i * kWarps + warp) * 8 + q * 2;
      if ((i * kWarps + warp) * 8 >= p.value) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + half * 8;
        if (!sees_some(row)) continue;
        float* const target = p.partials + (head_of(row) * p.num_chunks + chunk) * p.value + column;
        *reinterpret_cast<float2*>(target) = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 2 * warp + h;
      if (lane == 0 && sees_some(row)) {
        p.statistics[head_of(row) * p.num_chunks + chunk] = make_float2(highest[h], total[h]);
      }
    }
  }
}

// A block a row and head.
__global__ void __launch_bounds__(kSumThreads) combine_kernel(Groups p) {
  begin_behind_work_before();
  const int64_t head = blockIdx.x;
  const Seen seen = seen_by(p.places, head / p.num_heads, p.window);
  Bf16* const out = p.out + head * p.value;
  if (!seen.exists()) {
    for (int d = static_cast<int>(threadIdx.x); d < p.value; d += kSumThreads) {
      out[d] = from_float<Bf16>(__int_as_float(0x7FC00000));
    }
    return;
  }
  const auto first = static_cast<int>(seen.begin / kChunkKeys), last = static_cast<int>((seen.end - 1) / kChunkKeys);
  const float2* const statistics = p.statistics + head * p.num_chunks;
  float highest = -INFINITY, total = 0.0F, sums[kMaxGroupValue / kSumThreads] = {};
#pragma unroll 4
  for (int c = first; c <= last; ++c) {
    const float2 chunk = statistics[c];
    const ChunkFactors factors = follow_chunk(highest, chunk.x);
    total = add_chunk(factors, total, chunk.y);
    const float* const partials = p.partials + (head * p.num_chunks + c) * p.value + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kMaxGroupValue / kSumThreads; ++i) {
      if (static_cast<int>(threadIdx.x) + i * kSumThreads >= p.value) continue;
      sums[i] = add_chunk(factors, sums[i], partials[i * kSumThreads]);
    }
  }
  const float factor =
      p.sinks == nullptr ? 1.0F / total : end_with_sink(highest, total, p.sinks[head % p.num_heads]).factor;
#pragma unroll
  for (int i = 0; i < kMaxGroupValue / kSumThreads; ++i) {
    const int d = static_cast<int>(threadIdx.x) + i * kSumThreads;
    if (d < p.value) out[d] = from_float<Bf16>(sums[i] * factor);
  }
}

int shared_bytes_of(const Groups& p) {
  const int elements =
      (kHeads + kKeys) * p.key_pitch() + (p.own_values ? kKeys * p.value_pitch() : 0) + kHeads * kWeightPitch;
  return elements * static_cast<int>(sizeof(Bf16)) + kHeads * (kScorePitch + 1) * static_cast<int>(sizeof(float));
}

// Where tokens are many, they are long pieces of few slots.
int block_tokens(const CachedAttention& args) {
  constexpr int64_t kManyTokens = 257;
  const int64_t heads = args.q.dim(1) / args.num_kv_heads;
  return args.q.dim(0) < kManyTokens ? 1 : static_cast<int>(kHeads / heads);
}

// Of tokens [first, first + num_tokens).
Groups groups_of(const CachedAttention& args, const CachedAttentionPlan& sums, int64_t first, int64_t num_tokens) {
  const int64_t value = args.out.dim(2);
  const Tensor values = args.values.defined() ? args.values : args.keys;
  NMOE_CHECK(
      aligned16(args.q.rows_raw()) && args.q.stride() % 8 == 0 && aligned16(args.keys.raw()) && aligned16(values.raw()),
      "unaligned tensors");
  return {.q = args.q.rows_data<Bf16>() + first * args.q.stride(),
          .places = places_of(args).from(first),
          .keys = args.keys.data<Bf16>(),
          .values = values.data<Bf16>(),
          .partials = sums.partials.data<float>(),
          .statistics = static_cast<float2*>(sums.statistics.raw()),
          .out = args.out.data<Bf16>() + first * args.q.dim(1) * value,
          .num_heads = static_cast<int>(args.q.dim(1)),
          .num_kv_heads = static_cast<int>(args.num_kv_heads),
          .key = static_cast<int>(args.q.dim(2)),
          .value = static_cast<int>(value),
          .num_chunks = static_cast<int>(sums.partials.dim(2)),
          .num_tokens = static_cast<int>(num_tokens),
          .block_tokens = block_tokens(args),
          .query_stride = args.q.stride(),
          .value_width = values.dim(2),
          .value_step = args.values.defined() ? value : 0,
          .window = args.window,
          .scale = static_cast<float>(args.scale),
          .own_values = args.values.defined(),
          .sinks = args.sinks.data_or_null<float>()};
}

}  // namespace

void cached_attention_by_groups(Context& ctx, const CachedAttention& args, const CachedAttentionPlan& plan) {
  if (args.out.num_elements() == 0) return;
  const int64_t T = args.q.dim(0), part = plan.partials.dim(0);
  for (int64_t first = 0; first < T; first += part) {
    const Groups groups = groups_of(args, plan, first, std::min(part, T - first));
    const int bytes = shared_bytes_of(groups);
    allow_dynamic_shared(chunk_kernel, bytes);
    const dim3 grid(grid_size(ceil_div(groups.num_tokens, groups.block_tokens)), short_grid_size(groups.num_kv_heads),
                    short_grid_size(groups.num_chunks));
    launch_early(ctx, chunk_kernel, grid, kThreads, bytes, groups);
    launch_early(ctx, combine_kernel, grid_size(int64_t{groups.num_tokens} * groups.num_heads), kSumThreads, 0, groups);
  }
}

}  // namespace nmoe::cuda
