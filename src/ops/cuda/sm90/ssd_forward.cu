// The SSD scan forward (contracts/ssd.h), all of it in one kernel: heads of 64 values, 128 states, chunks of 128
// tokens.
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
#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/quad_rows.cuh"
#include "ops/cuda/sm90/ssd_forward.h"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90 {
namespace {

using Bf16 = __nv_bfloat16;
using ssd::Chunk;

constexpr int P = kSm90SsdHead, N = kSm90SsdState, Q = kSm90SsdChunk;
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kRows = kPanel;          // of a warpgroup
constexpr int kRowBytes = kPanel * 2;  // of a panel
constexpr int kStates = N / kPanel;    // panels of states
constexpr int kSteps = kPanel / kProductDepth;
constexpr float kLog2E = 1.4426950408889634F;
static_assert(P == kPanel && Q == 2 * kRows && kStates == 2);

// Shared memory, in bytes: panels of 64 columns, rows of 128 bytes, swizzled as TMA would. A stage has a chunk's
// inputs.
constexpr int kTokenPanel = Q * kRowBytes;
constexpr int kXAt = 0, kBAt = kXAt + kTokenPanel, kCAt = kBAt + kStates * kTokenPanel;
constexpr int kStepAt = kCAt + kStates * kTokenPanel, kSumAt = kStepAt + Q * 4;
constexpr int kStageBytes = kSumAt + Q * 4;
constexpr int kStages = 2;
constexpr int kWeightedAt = kStages * kStageBytes;        // [Q, P]: x, each row by exp(s[last] - s[j]) step[j]
constexpr int kStateAt = kWeightedAt + kTokenPanel;       // [P, N]: the state at the chunk's beginning
constexpr int kLogAt = kStateAt + kStates * kPanelBytes;  // [Q] F32: sums by log2(e)
constexpr int kSharedBytes = kLogAt + Q * 4 + kPanelAlignment;
static_assert(kStageBytes % kPanelAlignment == 0 && kTokenPanel % kPanelAlignment == 0 &&
              kSharedBytes <= kMaxSharedBytes);

// Where 16 bytes of a panel's row are.
__device__ inline int swizzled(int row, int sixteenth) { return row * kRowBytes + (sixteenth ^ row % 8) * 16; }

struct Block {
  std::byte* shared;
  int seq, head, group;

  __device__ std::byte* stage(int number) const { return shared + number % kStages * kStageBytes; }
};

// Has a chunk's inputs copied, in one group of copies; an empty one, where there is no such chunk.
__device__ void load_chunk(const ssd::Scan<Bf16>& in, const Block& of, const Chunk& chunk, bool exists,
                           std::byte* stage) {
  if (exists) {
    const int size = chunk.size(), thread = static_cast<int>(threadIdx.x);
    // Rows of `panels` panels, kThreads / 8 / panels at a time.
    const auto load = [&](const Bf16* data, int64_t stride, int panels, std::byte* target) {
      const int sixteenth = thread % (8 * panels), first = thread / (8 * panels), step = kThreads / (8 * panels);
      const Bf16* source = data + (chunk.begin + first) * stride + sixteenth * 8;
#pragma unroll 4
      for (int row = first; row < Q; row += step, source += step * stride) {
        const bool is_one = row < size;
        copy_async16(target + sixteenth / 8 * kTokenPanel + swizzled(row, sixteenth % 8), is_one ? source : data,
                     is_one);
      }
    };
    load(in.x + of.head * P, in.x_stride, 1, stage + kXAt);
    load(in.b + of.group * N, in.b_stride, kStates, stage + kBAt);
    load(in.c + of.group * N, in.c_stride, kStates, stage + kCAt);
    const int i = thread % Q;
    const float* const row = (thread < Q ? in.steps : in.sums) + of.head * in.tokens + chunk.begin;
    copy_async4(stage + (thread < Q ? kStepAt : kSumAt) + i * 4, i < size ? row + i : row, i < size);
  }
  commit_copies();
}

// The thread's rows of its warpgroup's, h = 0 and 1, and the first of its columns of the n'th eight.
__device__ inline int own_row(int h) {
  return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + 8 * h + static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int own_column(int n) { return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2; }

// Once the chunk is there: x's rows weighted, sums by log2(e), and the state in BF16, for products.
__device__ void prepare(const std::byte* stage, std::byte* shared, int size, int half, const float (&state)[32]) {
  const float* const step = reinterpret_cast<const float*>(stage + kStepAt);
  const float* const sum = reinterpret_cast<const float*>(stage + kSumAt);
  const float last = sum[size - 1] * kLog2E;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = thread; i < Q * 8; i += kThreads) {
    const int row = i / 8, at = swizzled(row, i % 8);
    float v[8];
    load8(reinterpret_cast<const Bf16*>(stage + kXAt + at), v);
    const float weight = flushed_exp2(last - sum[row] * kLog2E) * step[row];
#pragma unroll
    for (float& value : v) value *= weight;
    *reinterpret_cast<uint4*>(shared + kWeightedAt + at) = pack8(v);
  }
  if (thread < Q) reinterpret_cast<float*>(shared + kLogAt)[thread] = sum[thread] * kLog2E;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = swizzled(own_row(h), n) + own_column(0) * 2;
      *reinterpret_cast<uint32_t*>(shared + kStateAt + half * kPanelBytes + at) =
          bf16_pair(state[4 * n + 2 * h], state[4 * n + 2 * h + 1]);
    }
  }
}

// sums = the warpgroup's rows of C times 64 rows of B or of the state, over all states. Under way at return.
__device__ inline void multiply_rows(uint64_t c, uint64_t others, int others_panel, float (&sums)[32]) {
#pragma unroll
  for (int panel = 0; panel < kStates; ++panel) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_n64<false, false>(sums, c + panel * (kTokenPanel / 16) + step * wgmma_descriptor_step<true>(),
                              others + panel * (others_panel / 16) + step * wgmma_descriptor_step<true>(),
                              panel + step > 0);
    }
  }
  wgmma_commit_group();
}

// m = M, of scores with tokens from `first` on, those of the warpgroup's rows from `row` on.
template <bool kIsDiagonal>
__device__ void mix(const float (&scores)[32], const float* log_sums, const float* step, int row, int first,
                    uint32_t (&m)[16]) {
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
// y += m x of tokens from `first` on. Under way at return.
__device__ inline void multiply_mix(const uint32_t (&m)[16], uint64_t x, float (&y)[32]) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_rows</*kTransB=*/true>(y, m + 4 * step, x + step * wgmma_descriptor_step<false>());
  }
  wgmma_commit_group();
}

// y of the warpgroup's rows. The last product is under way at return.
template <int kHalf>
__device__ __forceinline__ void rows_of_chunk(const std::byte* stage, const std::byte* shared, float (&y)[32]) {
  constexpr int kFirst = kHalf * kRows;
  const float* const log_sums = reinterpret_cast<const float*>(shared + kLogAt);
  const float* const step = reinterpret_cast<const float*>(stage + kStepAt);
  const uint64_t c = wgmma_descriptor(stage + kCAt + kFirst * kRowBytes);
  const auto b = [&](int first) { return wgmma_descriptor(stage + kBAt + first * kRowBytes); };
  const auto x = [&](int first) { return wgmma_descriptor(stage + kXAt + first * kRowBytes); };
  float scores[1 + kHalf][32];
  wgmma_fence();
  multiply_rows(c, wgmma_descriptor(shared + kStateAt), kPanelBytes, y);
  multiply_rows(c, b(0), kTokenPanel, scores[0]);
  if constexpr (kHalf == 1) multiply_rows(c, b(kRows), kTokenPanel, scores[1]);
  wgmma_wait_group<1 + kHalf>();
  const float fade[2] = {flushed_exp2(log_sums[kFirst + own_row(0)]), flushed_exp2(log_sums[kFirst + own_row(1)])};
#pragma unroll
  for (int i = 0; i < 32; ++i) y[i] *= fade[i / 2 % 2];
  uint32_t m[1 + kHalf][16];
  wgmma_wait_group<kHalf>();
  mix<kHalf == 0>(scores[0], log_sums, step, kFirst, 0, m[0]);
  multiply_mix(m[0], x(0), y);
  if constexpr (kHalf == 1) {
    wgmma_wait_group<1>();
    mix<true>(scores[1], log_sums, step, kFirst, kRows, m[1]);
    multiply_mix(m[1], x(kRows), y);
  }
}

// y + d x, to memory: rows [row, size) of the chunk.
__device__ void store_rows(const std::byte* stage, const float (&y)[32], float d, int row, int size, Bf16* target,
                           int64_t stride) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + own_row(h);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int n = part * 4 + j;
        const uint32_t x = *reinterpret_cast<const uint32_t*>(stage + kXAt + swizzled(i, n) + own_column(0) * 2);
        pairs[j] = bf16_pair(fmaf(d, __uint_as_float(x << 16), y[4 * n + 2 * h]),
                             fmaf(d, __uint_as_float(x & 0xFFFF0000U), y[4 * n + 2 * h + 1]));
      }
      transpose_in_quad(pairs);
      const int n = part * 4 + static_cast<int>(threadIdx.x) % 4;
      if (i < size) {
        __stwb(reinterpret_cast<uint4*>(target + i * stride + n * 8),
               make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
      }
    }
  }
}

// state = exp(s[last]) state + its half of the chunk's part. Under way at return.
template <int kHalf>
__device__ __forceinline__ void advance(const std::byte* stage, const std::byte* shared, int size, float (&state)[32]) {
  const float fade = flushed_exp2(reinterpret_cast<const float*>(shared + kLogAt)[size - 1]);
#pragma unroll
  for (float& value : state) value *= fade;
  const uint64_t x = wgmma_descriptor(shared + kWeightedAt);
  const uint64_t b = wgmma_descriptor(stage + kBAt + kHalf * kTokenPanel);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < Q / kProductDepth; ++step) {
    wgmma_n64<true, true>(state, x + step * wgmma_descriptor_step<false>(), b + step * wgmma_descriptor_step<false>(),
                          true);
  }
  wgmma_commit_group();
}

// A chunk's y, and the state behind it.
template <int kHalf>
__device__ __forceinline__ void whole_chunk(const std::byte* stage, const std::byte* shared, float d, int size,
                                            Bf16* target, int64_t stride, float (&state)[32]) {
  float rows[32];
  rows_of_chunk<kHalf>(stage, shared, rows);
  advance<kHalf>(stage, shared, size, state);
  wgmma_wait_group<1>();
  store_rows(stage, rows, d, kHalf * kRows, size, target, stride);
  wgmma_wait_group<0>();
}

// The warpgroup's half of a state [P, N], from or to memory.
template <class Fn>
__device__ void each_of_state(float (&state)[32], int half, const Fn& fn) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      fn(own_row(h) * N + half * kPanel + own_column(n), state[4 * n + 2 * h], state[4 * n + 2 * h + 1]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    ssd_forward_kernel(ssd::Scan<Bf16> in, const float* initial, float* final_state, Bf16* y) {
  extern __shared__ std::byte dynamic[];
  const int head = static_cast<int>(blockIdx.x) % in.H;
  const Block of{dynamic + (kPanelAlignment - shared_address(dynamic) % kPanelAlignment) % kPanelAlignment,
                 static_cast<int>(blockIdx.x) / in.H, head, in.group(head)};
  const int half = static_cast<int>(threadIdx.x) / kWarpgroup;  // which of the warpgroups
  const int first = in.firsts[of.seq], end = in.firsts[of.seq + 1];
  const int64_t state_at = static_cast<int64_t>(blockIdx.x) * P * N, y_stride = int64_t{in.H} * P;
  const float d = in.d[of.head];
  float state[32] = {};
  Chunk chunk = in.chunks[first], next = in.chunks[min(first + 1, end - 1)];
  load_chunk(in, of, chunk, true, of.stage(0));
  load_chunk(in, of, next, first + 1 < end, of.stage(1));
  for (int number = 0; first + number < end; ++number) {
    const Chunk ahead = in.chunks[min(first + number + 2, end - 1)];
    const std::byte* const stage = of.stage(number);
    const int size = chunk.size();
    if (chunk.before < 0) {
#pragma unroll
      for (float& value : state) value = 0.0F;
    } else if (chunk.begin == of.seq * in.seq_len) {
      each_of_state(state, half, [&](int at, float& low, float& high) {
        const float2 pair = *reinterpret_cast<const float2*>(initial + state_at + at);
        low = pair.x, high = pair.y;
      });
    }
    wait_copies<1>();
    __syncthreads();  // all threads' copies
    prepare(stage, of.shared, size, half, state);
    fence_proxy_async();  // what was copied and written is what wgmma reads
    __syncthreads();
    Bf16* const target = y + chunk.begin * y_stride + of.head * P;
    if (half == 0) {
      whole_chunk<0>(stage, of.shared, d, size, target, y_stride, state);
    } else if (kRows < size) {
      whole_chunk<1>(stage, of.shared, d, size, target, y_stride, state);
    } else {
      advance<1>(stage, of.shared, size, state);
      wgmma_wait_group<0>();
    }
    if (chunk.after >= in.num_seqs * in.places) {
      each_of_state(state, half,
                    [&](int at, float low, float high) { store2(final_state + state_at + at, low, high); });
    }
    __syncthreads();  // nobody reads the stage any more
    load_chunk(in, of, ahead, first + number + 2 < end, of.stage(number));
    chunk = next;
    next = ahead;
  }
}

}  // namespace

void ssd_forward(Context& ctx, const SsdForward& args, const SsdTables& tables) {
  const SsdInputs& in = args.in;
  NMOE_CHECK(
      aligned16(in.x.rows_raw()) && aligned16(in.b.rows_raw()) && aligned16(in.c.rows_raw()) && aligned16(args.y.raw()),
      "a scan of rows that do not begin at multiples of 16 bytes");
  allow_dynamic_shared(ssd_forward_kernel, kSharedBytes);
  ssd_forward_kernel<<<grid_size(in.num_seqs * in.x.dim(1)), kThreads, kSharedBytes, ctx.stream>>>(
      ssd::scan_of<Bf16>(in, tables), in.initial_state.data_or_null<float>(), args.final_state.data_or_null<float>(),
      args.y.data<Bf16>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
