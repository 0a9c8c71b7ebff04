// What the SSD scan's kernels on Hopper share: how a chunk lies in shared memory, how it comes there, and where a
// thread's sums are. Heads of P = 64 values, N = 128 states, chunks of Q = 128 tokens; two warpgroups, each with 64 of
// the chunk's tokens or 64 of the states.
#pragma once

#include "ops/cuda/kernels/recurrent/ssd_chunks.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/flushed_math.cuh"
#include "ops/cuda/primitives/shared_memory.cuh"
#include "ops/cuda/sm90/limits.cuh"
#include "ops/cuda/sm90/quad_rows.cuh"
#include "ops/cuda/sm90/tma.cuh"
#include "ops/cuda/sm90/warpgroup.cuh"
#include "ops/cuda/sm90/wgmma.cuh"

namespace nmoe::cuda::sm90::scan {

using Bf16 = __nv_bfloat16;
using Scan = ssd::Scan<Bf16>;

constexpr int P = kSm90SsdHead, N = kSm90SsdState, Q = kSm90SsdChunk;
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kRows = kPanel;          // of a warpgroup
constexpr int kRowBytes = kPanel * 2;  // of a panel: 64 columns, swizzled as TMA would
constexpr int kStatePanels = N / kPanel;
constexpr int kSteps = kPanel / kProductDepth;
constexpr float kLog2E = 1.4426950408889634F;
static_assert(P == kPanel && Q == 2 * kRows && kStatePanels == 2);

// Bytes of shared memory: a panel of all tokens; x or dy of a head, B or C of a group, a state; a head's steps and
// sums.
constexpr int kTokenPanel = Q * kRowBytes;
constexpr int kHeadBytes = kTokenPanel, kGroupBytes = kStatePanels * kTokenPanel;
constexpr int kStateBytes = kStatePanels * kPanelBytes;
constexpr int kStepBytes = 2 * Q * 4;
static_assert(kStepBytes % kPanelAlignment == 0 && kTokenPanel % kPanelAlignment == 0);

// The block's dynamic shared memory, for which it asks kPanelAlignment bytes more.
__device__ inline std::byte* aligned_shared(std::byte* dynamic) {
  return dynamic + (kPanelAlignment - shared_address(dynamic) % kPanelAlignment) % kPanelAlignment;
}
// Where 16 bytes of a panel's row are.
__device__ inline int swizzled(int row, int sixteenth) { return row * kRowBytes + (sixteenth ^ row % 8) * 16; }

// Has kPanels panels of kCount rows copied, of which `size` exist and the others become zero. `data`: the first.
template <int kPanels, int kCount>
__device__ void load_panels(const Bf16* data, int64_t stride, int size, std::byte* target) {
  constexpr int kWidth = 8 * kPanels, kRowsAtOnce = kThreads / kWidth;
  static_assert(kCount % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);  // so that a thread's sixteenths are swizzled alike
  const int sixteenth = static_cast<int>(threadIdx.x) % kWidth, first = static_cast<int>(threadIdx.x) / kWidth;
  const Bf16* source = data + first * stride + sixteenth * 8;
  std::byte* const own = target + sixteenth / 8 * (kCount * kRowBytes) + swizzled(first, sixteenth % 8);
  // Counted by what the compiler knows: it then needs no code for what is left over.
#pragma unroll
  for (int i = 0; i < kCount / kRowsAtOnce; ++i, source += kRowsAtOnce * stride) {
    copy_async16(own + i * (kRowsAtOnce * kRowBytes), source, first + i * kRowsAtOnce < size);
  }
}
// x or what has its shape, of a head.
__device__ inline void load_head(const Bf16* rows, int64_t stride, const Chunk& chunk, int head, std::byte* target) {
  load_panels<1, Q>(rows + chunk.begin * stride + head * P, stride, chunk.size(), target);
}
// B or C.
__device__ inline void load_group(const Bf16* rows, int64_t stride, const Chunk& chunk, int group, std::byte* target) {
  load_panels<kStatePanels, Q>(rows + chunk.begin * stride + group * N, stride, chunk.size(), target);
}
// The state at `place`, as [P, N]; zeros if that is -1.
__device__ inline void load_state(const Bf16* states, int place, int heads, int head, std::byte* target) {
  const int64_t at = (static_cast<int64_t>(max(place, 0)) * heads + head) * P * N;
  load_panels<kStatePanels, P>(states + at, N, place < 0 ? 0 : P, target);
}
// Steps, of tokens that do not exist 0, and behind them sums, of those the last one.
__device__ inline void load_steps(const Scan& in, const Chunk& chunk, int head, std::byte* target) {
  const int i = static_cast<int>(threadIdx.x) % Q, last = chunk.size() - 1;
  const bool is_sum = threadIdx.x >= Q;
  const float* const row = (is_sum ? in.sums : in.steps) + head * in.tokens + chunk.begin;
  copy_async4(target + threadIdx.x * 4, row + min(i, last), is_sum || i <= last);
}
__device__ inline const float* steps_of(const std::byte* loaded) { return reinterpret_cast<const float*>(loaded); }
__device__ inline const float* sums_of(const std::byte* loaded) { return steps_of(loaded) + Q; }
// exp(x)
__device__ inline float decay(float x) { return flushed_exp2(x * kLog2E); }

// Where a thread's sums of 64 rows are: in d[4 n + 2 h + c] those of row own_row(h), column own_column(n) + c.
__device__ inline int own_warp() { return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp; }
__device__ inline int own_lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int own_row(int h) { return own_warp() * 16 + 8 * h + own_lane() / 4; }
__device__ inline int own_column(int n) { return 8 * n + own_lane() % 4 * 2; }
// In a panel, the pair of values that belongs to d[4 n + 2 h].
__device__ inline int own_pair(int row, int n) { return swizzled(row, n) + own_lane() % 4 * 4; }
__device__ inline float2 load_pair(const std::byte* panel, int row, int n) {
  const auto packed = *reinterpret_cast<const uint32_t*>(panel + own_pair(row, n));
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xFFFF0000U));
}

// To memory, rounded: row h of 64 columns, whose pairs make(n) returns. `target`: its first column; null: nowhere. All
// lanes of a warp.
template <class Make>
__device__ void store_row(Bf16* target, const Make& make) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = make(part * 4 + j);
    transpose_in_quad(pairs);
    if (target != nullptr) {
      __stwb(reinterpret_cast<uint4*>(target + (part * 4 + own_lane() % 4) * 8),
             make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
  }
}

// sums = 64 rows of an operand times 64 rows of another, over kPanels panels of 64 columns. Descriptors of the first
// panels; bytes from one to the next. Under way at return.
template <int kPanels>
__device__ __forceinline__ void multiply_rows(uint64_t rows, int rows_panel, uint64_t others, int others_panel,
                                              float (&sums)[32]) {
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_n64<false, false>(sums, rows + panel * (rows_panel / 16) + step * wgmma_descriptor_step<true>(),
                              others + panel * (others_panel / 16) + step * wgmma_descriptor_step<true>(),
                              panel + step > 0);
    }
  }
  wgmma_commit_group();
}
// sums += m times 64 rows of an operand, whose descriptor is that of the first of them; m [64, 64] in registers as
// wgmma_rows wants it. Under way at return.
template <int kValues>
__device__ __forceinline__ void multiply_mix(const uint32_t (&m)[16], uint64_t rows, float (&sums)[kValues]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_rows</*kTransB=*/true>(sums, m + 4 * step, rows + step * wgmma_descriptor_step<false>());
  }
  wgmma_commit_group();
}

// x's or dy's rows by weight(row), in `target`, a panel like that.
template <class Weight>
__device__ void weigh_rows(const std::byte* rows, std::byte* target, const Weight& weight) {
#pragma unroll
  for (int turn = 0; turn < Q * 8 / kThreads; ++turn) {
    const int i = turn * kThreads + static_cast<int>(threadIdx.x), row = i / 8, at = swizzled(row, i % 8);
    float v[8];
    load8(reinterpret_cast<const Bf16*>(rows + at), v);
    const float factor = weight(row);
#pragma unroll
    for (float& value : v) value *= factor;
    *reinterpret_cast<uint4*>(target + at) = pack8(v);
  }
}

// state [P, 64 of N] = fade state + weighted^T columns, of weighed rows and of a panel of B or C. Under way at return.
__device__ __forceinline__ void advance(const std::byte* weighted, const std::byte* columns, float fade,
                                        float (&state)[32]) {
#pragma unroll
  for (float& value : state) value *= fade;
  const uint64_t rows = wgmma_descriptor(weighted), others = wgmma_descriptor(columns);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < Q / kProductDepth; ++step) {
    wgmma_n64<true, true>(state, rows + step * wgmma_descriptor_step<false>(),
                          others + step * wgmma_descriptor_step<false>(), true);
  }
  wgmma_commit_group();
}

// fn(where in [P, N], value, the one behind it) of a warpgroup's half of a state.
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
__device__ inline void read_state(const float* from, int half, float (&state)[32]) {
  each_of_state(state, half, [&](int at, float& low, float& high) {
    const float2 pair = *reinterpret_cast<const float2*>(from + at);
    low = pair.x, high = pair.y;
  });
}
__device__ inline void write_state(float* to, int half, float (&state)[32]) {
  each_of_state(state, half, [&](int at, float low, float high) { store2(to + at, low, high); });
}

}  // namespace nmoe::cuda::sm90::scan
