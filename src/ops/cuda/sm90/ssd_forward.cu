// The SSD scan forward (contracts/ssd.h), all of it in one kernel.
//
// A block has one head of a sequence and goes along its chunks, while cp.async brings the next one's x, B and C. Of its
// two warpgroups each has 64 of the chunk's rows, in wgmma's places:
//
//   y  = C S^T            the state at the chunk's beginning, rounded to BF16; rows are then multiplied by exp(s[i])
//   g  = C B^T            64 tokens j at a time, up to the diagonal
//   y += M x              M = g exp(s[i] - s[j]) step[j], rounded, in registers
//   S  = exp(s[last]) S + (exp(s[last] - s[j]) step[j] x_j)^T B       half of the states each; F32, in registers
//
// so that a row's sum begins with the state's part, and what follows are chains of 16 consecutive terms, ascending.
// What is beyond a chunk's last token is zero in shared memory.
//
// Bound by tensor cores: 2,176 cycles of wgmma a chunk and head, 128 tokens; the rest of a chunk's time is what one
// warpgroup waits for between its products. Expected of one H100 with as many heads as multiprocessors: 4,000 cycles.
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/ssd.h"
#include "ops/cuda/sm90/ssd_panels.cuh"

namespace nmoe::cuda::sm90 {
namespace scan {
namespace {

// Shared memory: stages of a chunk's inputs, x by weights, the state, sums by log2(e).
constexpr int kStages = 2;
constexpr int kXAt = 0, kBAt = kXAt + kHeadBytes, kCAt = kBAt + kGroupBytes, kStepsAt = kCAt + kGroupBytes;
constexpr int kStageBytes = kStepsAt + kStepBytes;
constexpr int kWeightedAt = kStages * kStageBytes, kStateAt = kWeightedAt + kHeadBytes;
constexpr int kLogAt = kStateAt + kStateBytes;
constexpr int kSharedBytes = kLogAt + Q * 4 + kPanelAlignment;
static_assert(kStageBytes % kPanelAlignment == 0 && kSharedBytes <= kMaxSharedBytes);

// Has a chunk's inputs copied, in one group of copies; an empty one, where there is no such chunk.
__device__ void load_chunk(const Scan& in, const Chunk& chunk, int head, bool exists, std::byte* stage) {
  if (exists) {
    load_head(in.x, in.x_stride, chunk, head, stage + kXAt);
    load_group(in.b, in.b_stride, chunk, in.group(head), stage + kBAt);
    load_group(in.c, in.c_stride, chunk, in.group(head), stage + kCAt);
    load_steps(in, chunk, head, stage + kStepsAt);
  }
  commit_copies();
}

// Once the chunk is there: x's rows weighted, sums by log2(e), and the state in BF16, for products.
__device__ void prepare(const std::byte* stage, std::byte* shared, int half, const float (&state)[32]) {
  const float* const step = steps_of(stage + kStepsAt);
  const float* const sum = sums_of(stage + kStepsAt);
  const float last = sum[Q - 1];
  weigh_rows(stage + kXAt, shared + kWeightedAt, [&](int row) { return decay(last - sum[row]) * step[row]; });
  if (threadIdx.x < Q) reinterpret_cast<float*>(shared + kLogAt)[threadIdx.x] = sum[threadIdx.x] * kLog2E;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      *reinterpret_cast<uint32_t*>(shared + kStateAt + half * kPanelBytes + own_pair(own_row(h), n)) =
          bf16_pair(state[4 * n + 2 * h], state[4 * n + 2 * h + 1]);
    }
  }
}

// m = M, of scores with tokens from `first` on, of the warpgroup's rows from `row` on.
template <bool kIsDiagonal>
__device__ __forceinline__ void mix(const float (&scores)[32], const float* log_sums, const float* step, int row,
                                    int first, uint32_t (&m)[16]) {
  const float own[2] = {log_sums[row + own_row(0)], log_sums[row + own_row(1)]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 sum = *reinterpret_cast<const float2*>(log_sums + first + own_column(n));
    const float2 steps = *reinterpret_cast<const float2*>(step + first + own_column(n));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float low = scores[4 * n + 2 * h] * flushed_exp2(own[h] - sum.x) * steps.x;
      float high = scores[4 * n + 2 * h + 1] * flushed_exp2(own[h] - sum.y) * steps.y;
      if constexpr (kIsDiagonal) {
        low = own_column(n) <= own_row(h) ? low : 0.0F;
        high = own_column(n) + 1 <= own_row(h) ? high : 0.0F;
      }
      m[2 * n + h] = bf16_pair(low, high);
    }
  }
}

// y of the warpgroup's rows. The last product is under way at return.
template <int kHalf>
__device__ __forceinline__ void rows_of_chunk(const std::byte* stage, const std::byte* shared, float (&y)[32]) {
  constexpr int kFirst = kHalf * kRows;
  const float* const log_sums = reinterpret_cast<const float*>(shared + kLogAt);
  const float* const step = steps_of(stage + kStepsAt);
  const uint64_t c = wgmma_descriptor(stage + kCAt + kFirst * kRowBytes);
  const auto b = [&](int first) { return wgmma_descriptor(stage + kBAt + first * kRowBytes); };
  const auto x = [&](int first) { return wgmma_descriptor(stage + kXAt + first * kRowBytes); };
  float scores[1 + kHalf][32];
  wgmma_fence();
  multiply_rows<kStatePanels>(c, kTokenPanel, wgmma_descriptor(shared + kStateAt), kPanelBytes, y);
  multiply_rows<kStatePanels>(c, kTokenPanel, b(0), kTokenPanel, scores[0]);
  if constexpr (kHalf == 1) multiply_rows<kStatePanels>(c, kTokenPanel, b(kRows), kTokenPanel, scores[1]);
  wgmma_wait_group<1 + kHalf>();
  const float fade[2] = {flushed_exp2(log_sums[kFirst + own_row(0)]), flushed_exp2(log_sums[kFirst + own_row(1)])};
#pragma unroll
  for (int i = 0; i < 32; ++i) y[i] *= fade[i / 2 % 2];
  uint32_t m[1 + kHalf][16];
  wgmma_wait_group<kHalf>();
  mix<kHalf == 0>(scores[0], log_sums, step, kFirst, 0, m[0]);
  wgmma_fence();
  multiply_mix(m[0], x(0), y);
  if constexpr (kHalf == 1) {
    wgmma_wait_group<1>();
    mix<true>(scores[1], log_sums, step, kFirst, kRows, m[1]);
    wgmma_fence();
    multiply_mix(m[1], x(kRows), y);
  }
}

// A chunk's y, and the state behind it.
template <int kHalf>
__device__ __forceinline__ void whole_chunk(const std::byte* stage, const std::byte* shared, float d, int size,
                                            Bf16* target, int64_t stride, float fade, float (&state)[32]) {
  float y[32];
  rows_of_chunk<kHalf>(stage, shared, y);
  advance(shared + kWeightedAt, stage + kBAt + kHalf * kTokenPanel, fade, state);
  wgmma_wait_group<1>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = kHalf * kRows + own_row(h);
    store_row(row < size ? target + row * stride : nullptr, [&](int n) {
      const float2 x = load_pair(stage + kXAt, row, n);
      return bf16_pair(fmaf(d, x.x, y[4 * n + 2 * h]), fmaf(d, x.y, y[4 * n + 2 * h + 1]));
    });
  }
  wgmma_wait_group<0>();
}

__global__ void __launch_bounds__(kThreads, 1)
    ssd_forward_kernel(Scan in, const float* initial, float* final_state, Bf16* y) {
  extern __shared__ std::byte dynamic[];
  std::byte* const shared = aligned_shared(dynamic);
  const int seq = static_cast<int>(blockIdx.x) / in.H, head = static_cast<int>(blockIdx.x) % in.H;
  const int half = static_cast<int>(threadIdx.x) / kWarpgroup;  // which of the warpgroups
  const int first = in.firsts[seq], end = in.firsts[seq + 1];
  const int64_t state_at = static_cast<int64_t>(blockIdx.x) * P * N, stride = int64_t{in.H} * P;
  const float d = in.d[head];
  float state[32] = {};
  Chunk chunk = in.chunks[first], next = in.chunks[min(first + 1, end - 1)];
  load_chunk(in, chunk, head, true, shared);
  load_chunk(in, next, head, first + 1 < end, shared + kStageBytes);
  for (int number = first; number < end; ++number) {
    const Chunk ahead = in.chunks[min(number + 2, end - 1)];
    std::byte* const stage = shared + (number - first) % kStages * kStageBytes;
    const int size = chunk.size();
    if (chunk.before < 0) {
#pragma unroll
      for (float& value : state) value = 0.0F;
    } else if (chunk.begin == seq * in.seq_len) {
      read_state(initial + state_at, half, state);
    }
    wait_copies<1>();
    __syncthreads();  // all threads' copies
    prepare(stage, shared, half, state);
    fence_proxy_async();  // what was copied and written is what wgmma reads
    __syncthreads();
    Bf16* const target = y + chunk.begin * stride + head * P;
    const float fade = decay(sums_of(stage + kStepsAt)[Q - 1]);
    if (half == 0) {
      whole_chunk<0>(stage, shared, d, size, target, stride, fade, state);
    } else if (kRows < size) {
      whole_chunk<1>(stage, shared, d, size, target, stride, fade, state);
    } else {
      advance(shared + kWeightedAt, stage + kBAt + kTokenPanel, fade, state);
      wgmma_wait_group<0>();
    }
    if (chunk.after >= in.num_seqs * in.places) write_state(final_state + state_at, half, state);
    __syncthreads();  // nobody reads the stage any more
    load_chunk(in, ahead, head, number + 2 < end, stage);
    chunk = next;
    next = ahead;
  }
}

}  // namespace
}  // namespace scan

void ssd_forward(Context& ctx, const SsdForward& args, const SsdTables& tables) {
  const SsdInputs& in = args.in;
  NMOE_CHECK(
      aligned16(in.x.rows_raw()) && aligned16(in.b.rows_raw()) && aligned16(in.c.rows_raw()) && aligned16(args.y.raw()),
      "a scan of rows that do not begin at multiples of 16 bytes");
  allow_dynamic_shared(scan::ssd_forward_kernel, scan::kSharedBytes);
  scan::ssd_forward_kernel<<<grid_size(in.num_seqs * in.x.dim(1)), scan::kThreads, scan::kSharedBytes, ctx.stream>>>(
      ssd::scan_of<scan::Bf16>(in, tables), in.initial_state.data_or_null<float>(),
      args.final_state.data_or_null<float>(), args.y.data<scan::Bf16>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
