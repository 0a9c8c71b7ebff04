// The SSD scan's states at chunks' beginnings, and their gradients, for backward (contracts/ssd.h): what
// ssd_forward.cu does with a state in registers, but that the state goes to memory in BF16 and no output is made. A
// block has one head of a sequence and goes along its chunks, or back.
//
// Bound by memory: x or dy in, a state out, 32 KiB a chunk and head.
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/ssd.h"
#include "ops/cuda/sm90/ssd_panels.cuh"

namespace nmoe::cuda::sm90 {
namespace scan {
namespace {

constexpr int kStages = 4;
constexpr int kHeadAt = 0, kGroupAt = kHeadBytes, kStepsAt = kGroupAt + kGroupBytes;
constexpr int kStageBytes = kStepsAt + kStepBytes;
constexpr int kSharedBytes = kStages * kStageBytes + kPanelAlignment;
static_assert(kStageBytes % kPanelAlignment == 0 && kSharedBytes <= kMaxSharedBytes);

// kBack: dy by exp(s[i]) and C instead of x by exp(s[last] - s[j]) step[j] and B.
struct States {
  const Bf16* rows;
  int64_t rows_stride;
  const float* first;  // the state that a sequence begins with, or the gradient behind it; may be null
  float* last;         // the gradient of a sequence's first state; may be null
  Bf16* states;
};

template <bool kBack>
__device__ void load_chunk(const Scan& in, const States& of, const Chunk& chunk, int head, bool exists,
                           std::byte* stage) {
  if (exists) {
    load_head(of.rows, of.rows_stride, chunk, head, stage + kHeadAt);
    load_group(kBack ? in.c : in.b, kBack ? in.c_stride : in.b_stride, chunk, in.group(head), stage + kGroupAt);
    load_steps(in, chunk, head, stage + kStepsAt);
  }
  commit_copies();
}

// The warpgroup's half of the state at `place` of all.
__device__ void store_state(Bf16* states, int place, int heads, int head, int half, const float (&state)[32]) {
  Bf16* const target = states + (static_cast<int64_t>(place) * heads + head) * P * N + half * kPanel;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    store_row(target + own_row(h) * N,
              [&](int n) { return bf16_pair(state[4 * n + 2 * h], state[4 * n + 2 * h + 1]); });
  }
}

// The chunk's rows weighted where they lie, and the state behind them or before.
template <bool kBack>
__device__ void advance_chunk(std::byte* stage, int half, float (&state)[32]) {
  const float* const step = steps_of(stage + kStepsAt);
  const float* const sum = sums_of(stage + kStepsAt);
  const float last = sum[Q - 1];
  weigh_rows(stage + kHeadAt, stage + kHeadAt,
             [&](int row) { return kBack ? decay(sum[row]) : decay(last - sum[row]) * step[row]; });
  fence_proxy_async();  // what was copied and written is what wgmma reads
  __syncthreads();
  advance(stage + kHeadAt, stage + kGroupAt + half * kTokenPanel, decay(last), state);
  wgmma_wait_group<0>();
}

template <bool kBack>
__global__ void __launch_bounds__(kThreads, 1) ssd_states_kernel(Scan in, States of) {
  extern __shared__ std::byte dynamic[];
  std::byte* const shared = aligned_shared(dynamic);
  const int seq = static_cast<int>(blockIdx.x) / in.H, head = static_cast<int>(blockIdx.x) % in.H;
  const int half = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int begin = in.firsts[seq], count = in.firsts[seq + 1] - begin;
  const int64_t state_at = static_cast<int64_t>(blockIdx.x) * P * N;
  // The i'th chunk, in the order of the scan.
  const auto chunk_at = [&](int i) {
    const int number = min(i, count - 1);
    return in.chunks[begin + (kBack ? count - 1 - number : number)];
  };
  float state[32] = {};
  if (kBack && of.first != nullptr) {
    read_state(of.first + state_at, half, state);
    store_state(of.states, in.num_seqs * in.places + seq, in.H, head, half, state);
  }
  for (int i = 0; i + 1 < kStages; ++i) {
    load_chunk<kBack>(in, of, chunk_at(i), head, i < count, shared + i * kStageBytes);
  }
  Chunk ahead = chunk_at(kStages - 1);
  for (int i = 0; i < count; ++i) {
    const Chunk chunk = chunk_at(i), beyond = chunk_at(i + kStages);
    const bool is_first = chunk.begin == seq * in.seq_len;
    std::byte* const stage = shared + i % kStages * kStageBytes;
    wait_copies<kStages - 2>();
    __syncthreads();  // all threads' copies; and nobody reads the stage of the chunk before
    load_chunk<kBack>(in, of, ahead, head, i + kStages - 1 < count, shared + (i + kStages - 1) % kStages * kStageBytes);
    ahead = beyond;
    if (chunk.before < 0) {
#pragma unroll
      for (float& value : state) value = 0.0F;
    }
    if constexpr (kBack) {
      if (chunk.before >= 0) {
        advance_chunk<kBack>(stage, half, state);
        store_state(of.states, chunk.before, in.H, head, half, state);
      }
      if (is_first && of.last != nullptr) write_state(of.last + state_at, half, state);
    } else {
      if (chunk.before >= 0) {
        if (is_first) read_state(of.first + state_at, half, state);
        store_state(of.states, chunk.before, in.H, head, half, state);
      }
      if (chunk.after >= 0) advance_chunk<kBack>(stage, half, state);
    }
  }
}

template <bool kBack>
void launch(Context& ctx, const Scan& scan, const States& of) {
  allow_dynamic_shared(ssd_states_kernel<kBack>, kSharedBytes);
  ssd_states_kernel<kBack>
      <<<grid_size(int64_t{scan.num_seqs} * scan.H), kThreads, kSharedBytes, ctx.stream>>>(scan, of);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace scan

void ssd_states(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan) {
  using scan::Bf16;
  const SsdInputs& in = args.in;
  const scan::Scan scan = ssd::scan_of<Bf16>(in, plan.tables);
  scan::launch</*kBack=*/false>(ctx, scan,
                                {.rows = scan.x,
                                 .rows_stride = scan.x_stride,
                                 .first = in.initial_state.data_or_null<float>(),
                                 .last = nullptr,
                                 .states = plan.states.data<Bf16>()});
  scan::launch</*kBack=*/true>(ctx, scan,
                               {.rows = args.dy.data<Bf16>(),
                                .rows_stride = args.dy.stride(),
                                .first = args.dfinal_state.data_or_null<float>(),
                                .last = args.dinitial_state.data_or_null<float>(),
                                .states = plan.dstates.data<Bf16>()});
}

}  // namespace nmoe::cuda::sm90
