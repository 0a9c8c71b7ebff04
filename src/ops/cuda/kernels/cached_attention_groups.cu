// A block has a row, the query heads of one of its key/value heads (at most 16, as the rows of mma.m16n8k16; places
// beyond are zeros) and a chunk of 256 positions, in tiles of 64 keys: scores by eight warps, eight keys each, an
// online softmax (Milakov and Gimelshein, arXiv 1805.02867), a warp two heads, and values, a warp every eighth tile of
// eight columns. MLA's sixteen heads read the same latent keys, which are the values too: they are read once. A second
// kernel adds up the chunks in their order (Flash-Decoding's split; Dao et al., 2023).
//
// What a row's sums depend on are sizes, its position and the window: chunks are of absolute positions.
//
// Bound by reading the cache when there are rows enough to fill the device; a single one has a block for each chunk.
#include <algorithm>

#include "ops/cuda/cached_attention_scratch.h"
#include "ops/cuda/kernels/cached_attention_groups.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/gemm_tile.cuh"
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
static_assert(kKeys == 8 * kWarps && kKeys == 2 * kWarp && kHeads == 2 * kWarps);

struct Groups {
  const Bf16* q;  // [T, H, key], apart
  const int32_t* slots;
  const int32_t* positions;
  const Bf16* keys;    // [Z, C, kv_heads * key]
  const Bf16* values;  // [Z, C, value_width]
  float* partials;     // [T, H, chunks, value]: sums of values by exp(score - highest)
  float2* statistics;  // [T, H, chunks]: highest score, sum of exp(score - highest)
  Bf16* out;           // [T, H, value]
  int num_heads, num_kv_heads, key, value, num_chunks;
  int64_t query_stride;             // from a token's queries to the next's
  int64_t value_width, value_step;  // of a position; from a key/value head to the next
  int64_t num_slots, capacity, window;
  float scale;
  bool own_values;

  __host__ __device__ int key_pitch() const { return key + kPad; }
  __host__ __device__ int value_pitch() const { return own_values ? value + kPad : key_pitch(); }
};

struct Seen {
  int64_t slot, begin, end;  // positions [begin, end); none where the row has no place in the cache
};
__device__ Seen seen_by(const Groups& p, int64_t token) {
  const int64_t slot = p.slots[token], position = p.positions[token];
  if (slot < 0 || slot >= p.num_slots || position < 0 || position >= p.capacity) return {0, 0, 0};
  return {slot, p.window == 0 ? 0 : max(int64_t{0}, position - p.window + 1), position + 1};
}

// Rows of `width` values, those from num_rows on zeros.
__device__ void load_rows(Bf16* target, int pitch, int rows, const Bf16* source, int64_t stride, int width,
                          int num_rows) {
  const int pieces = width / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += kThreads) {
    const int row = i / pieces, column = i % pieces * 8;
    const bool exists = row < num_rows;
    copy_async16(target + row * pitch + column, exists ? source + row * stride + column : source, exists);
  }
}

__global__ void __launch_bounds__(kThreads) chunk_kernel(Groups p) {
  extern __shared__ uint4 shared[];
  auto* queries = reinterpret_cast<Bf16*>(shared);                           // [kHeads, key_pitch]
  Bf16* const keys = queries + kHeads * p.key_pitch();                       // [kKeys, key_pitch]
  Bf16* const values = p.own_values ? keys + kKeys * p.key_pitch() : keys;   // [kKeys, value_pitch]
  Bf16* const weights = values + kKeys * p.value_pitch();                    // [kHeads, kWeightPitch]
  auto* scores = reinterpret_cast<float*>(weights + kHeads * kWeightPitch);  // [kHeads, kScorePitch]
  float* const fades = scores + kHeads * kScorePitch;                        // [kHeads]

  const int64_t token = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y), chunk = static_cast<int>(blockIdx.z);
  const Seen seen = seen_by(p, token);
  const int64_t begin = max(seen.begin, static_cast<int64_t>(chunk) * kChunkKeys);
  const int64_t end = min(seen.end, static_cast<int64_t>(chunk + 1) * kChunkKeys);
  if (begin >= end) return;
  const int heads = p.num_heads / p.num_kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, q = lane % 4;               // of results: rows g and g + 8, columns 2 q and 2 q + 1
  const int in_matrix = lane % 8, matrix = lane / 8;  // as ldmatrix takes addresses
  const int64_t first_head = token * p.num_heads + kv_head * heads;
  const int64_t key_width = static_cast<int64_t>(p.num_kv_heads) * p.key;
  const Bf16* const slot_keys = p.keys + seen.slot * p.capacity * key_width + kv_head * p.key;
  const Bf16* const slot_values = p.values + seen.slot * p.capacity * p.value_width + kv_head * p.value_step;

  load_rows(queries, p.key_pitch(), kHeads, p.q + token * p.query_stride + kv_head * heads * p.key, p.key, p.key,
            heads);
  float sums[kValueTiles][4] = {};
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // of heads 2 warp and 2 warp + 1
  for (int64_t tile = begin; tile < end; tile += kKeys) {
    const int num_keys = static_cast<int>(min(int64_t{kKeys}, end - tile));
    load_rows(keys, p.key_pitch(), kKeys, slot_keys + tile * key_width, key_width, p.key, num_keys);
    if (p.own_values) {
      load_rows(values, p.value_pitch(), kKeys, slot_values + tile * p.value_width, p.value_width, p.value, num_keys);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    float score[4] = {};
    const Bf16* const query_row = queries + (matrix % 2 * 8 + in_matrix) * p.key_pitch() + matrix / 2 * 8;
    const Bf16* const key_row = keys + (warp * 8 + in_matrix) * p.key_pitch() + matrix * 8;
#pragma unroll 4
    for (int k = 0; k < p.key; k += 32) {
      unsigned first[4], second[4], b[4];
      load_matrices<false>(query_row + k, first);
      load_matrices<false>(query_row + k + 16, second);
      load_matrices<false>(key_row + k, b);
      gemm::multiply_add(score, first, b[0], b[1]);
      gemm::multiply_add(score, second, b[2], b[3]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[(g + c / 2 * 8) * kScorePitch + warp * 8 + q * 2 + c % 2] = score[c] * p.scale;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * warp + h;
      const float score_a = lane < num_keys ? scores[head * kScorePitch + lane] : -INFINITY;
      const float score_b = lane + kWarp < num_keys ? scores[head * kScorePitch + lane + kWarp] : -INFINITY;
      const float new_highest = fmaxf(highest[h], warp_max(fmaxf(score_a, score_b)));
      const float weight_a = expf(score_a - new_highest), weight_b = expf(score_b - new_highest);
      const float fade = expf(highest[h] - new_highest);
      total[h] = total[h] * fade + warp_sum(weight_a + weight_b);
      highest[h] = new_highest;
      weights[head * kWeightPitch + lane] = from_float<Bf16>(weight_a);
      weights[head * kWeightPitch + lane + kWarp] = from_float<Bf16>(weight_b);
      if (lane == 0) fades[head] = fade;
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

#pragma unroll
  for (int i = 0; i < kValueTiles; ++i) {
    const int column = (i * kWarps + warp) * 8 + q * 2;
    if ((i * kWarps + warp) * 8 >= p.value) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = g + half * 8;
      if (head >= heads) continue;
      float* const target = p.partials + ((first_head + head) * p.num_chunks + chunk) * p.value + column;
      *reinterpret_cast<float2*>(target) = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = 2 * warp + h;
    if (lane == 0 && head < heads) {
      p.statistics[(first_head + head) * p.num_chunks + chunk] = make_float2(highest[h], total[h]);
    }
  }
}

// A block a row and head.
__global__ void __launch_bounds__(kSumThreads) combine_kernel(Groups p) {
  const int64_t head = blockIdx.x;
  const Seen seen = seen_by(p, head / p.num_heads);
  Bf16* const out = p.out + head * p.value;
  if (seen.end == 0) {
    for (int d = static_cast<int>(threadIdx.x); d < p.value; d += kSumThreads) {
      out[d] = from_float<Bf16>(__int_as_float(0x7FC00000));
    }
    return;
  }
  const auto first = static_cast<int>(seen.begin / kChunkKeys), last = static_cast<int>((seen.end - 1) / kChunkKeys);
  const float2* const statistics = p.statistics + head * p.num_chunks;
  float highest = -INFINITY, total = 0.0F;
  for (int c = first; c <= last; ++c) highest = fmaxf(highest, statistics[c].x);
  for (int c = first; c <= last; ++c) total += statistics[c].y * expf(statistics[c].x - highest);
  for (int d = static_cast<int>(threadIdx.x); d < p.value; d += kSumThreads) {
    float sum = 0.0F;
    for (int c = first; c <= last; ++c) {
      sum += p.partials[(head * p.num_chunks + c) * p.value + d] * expf(statistics[c].x - highest);
    }
    out[d] = from_float<Bf16>(sum / total);
  }
}

int shared_bytes_of(const Groups& p) {
  const int elements =
      (kHeads + kKeys) * p.key_pitch() + (p.own_values ? kKeys * p.value_pitch() : 0) + kHeads * kWeightPitch;
  return elements * static_cast<int>(sizeof(Bf16)) + kHeads * (kScorePitch + 1) * static_cast<int>(sizeof(float));
}

}  // namespace

void cached_attention_by_groups(Context& ctx, const CachedAttention& args) {
  const int64_t T = args.q.dim(0), H = args.q.dim(1), value = args.out.dim(2), capacity = args.keys.dim(1);
  ArenaScope scope(ctx.scratch);
  const auto [partials, statistics] = claim(scope, args);
  if (ctx.counting() || args.out.num_elements() == 0) return;
  const Tensor values = args.values.defined() ? args.values : args.keys;
  NMOE_CHECK(
      aligned16(args.q.rows_raw()) && args.q.stride() % 8 == 0 && aligned16(args.keys.raw()) && aligned16(values.raw()),
      "unaligned tensors");
  const Groups groups{.q = args.q.rows_data<Bf16>(),
                      .slots = args.slots.data<int32_t>(),
                      .positions = args.positions.data<int32_t>(),
                      .keys = args.keys.data<Bf16>(),
                      .values = values.data<Bf16>(),
                      .partials = partials.data<float>(),
                      .statistics = static_cast<float2*>(statistics.raw()),
                      .out = args.out.data<Bf16>(),
                      .num_heads = static_cast<int>(H),
                      .num_kv_heads = static_cast<int>(args.num_kv_heads),
                      .key = static_cast<int>(args.q.dim(2)),
                      .value = static_cast<int>(value),
                      .num_chunks = static_cast<int>(partials.dim(2)),
                      .query_stride = args.q.stride(),
                      .value_width = values.dim(2),
                      .value_step = args.values.defined() ? value : 0,
                      .num_slots = args.keys.dim(0),
                      .capacity = capacity,
                      .window = args.window,
                      .scale = static_cast<float>(args.scale),
                      .own_values = args.values.defined()};
  const int bytes = shared_bytes_of(groups);
  allow_dynamic_shared(chunk_kernel, bytes);
  const dim3 grid(grid_size(T), short_grid_size(args.num_kv_heads), short_grid_size(partials.dim(2)));
  chunk_kernel<<<grid, kThreads, static_cast<size_t>(bytes), ctx.stream>>>(groups);
  NMOE_CUDA_CHECK(cudaGetLastError());
  combine_kernel<<<grid_size(T * H), kSumThreads, 0, ctx.stream>>>(groups);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
