// The SSD scan backward on Hopper, from states at chunks' beginnings and their gradients (ssd_states.cu). Four kinds of
// blocks have a chunk and a group each, and go through the group's heads, while cp.async brings the next one's tensors.
// They are neighbours, so that what one reads is in the cache for the others.
//
//   heads     half of the heads each: dx, ddt, and the chunk's parts of what is summed over tokens. Each warpgroup has
//             64 tokens j:
//               g^T = B C^T                                       again for each head: there are no registers for it
//               dz  = (g^T exp(s[i] - s[j])) dy + exp(s[last] - s[j]) B dS^T
//               E   = g^T exp(s[i] - s[j]) step[j] (x dy^T)       whose sums over rectangles are the decays' gradient
//   db, dc    Each warpgroup has 64 tokens, all states:
//               dc = sum over heads of (exp(s[i]) dy) S, + (sum over heads of dG) B,   dG = exp(s[i] - s[j]) step[j] dy
//               x^T
//             and db likewise, of x weighted, dS, dG^T and C; sums over heads stay in registers.
//
// Operands that are made here are rounded to BF16. Bound by instructions: some 2,000 a chunk, head and warp of four, of
// which tensor cores see 2,560 and twice 896 cycles of wgmma. Both warpgroups run the same code, which has to stay in
// the instruction cache.
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/sm90/ssd.h"
#include "ops/cuda/sm90/ssd_backward.cuh"

namespace nmoe::cuda::sm90 {
namespace scan {
namespace {

struct Gradients {
  const Bf16 *dy, *states, *dstates;
  Bf16 *dx, *db, *dc, *ddt;
  int64_t dx_stride, db_stride, dc_stride, ddt_stride;
  const Bf16* dt;
  int64_t dt_stride;
  const float *dt_bias, *a_log;
  float* parts;  // [3, H, most_chunks]
  int64_t most_chunks;
};

// A chunk and a group, and what a block has of them.
struct Unit {
  int number;
  Chunk chunk;
  int group, first_head, heads;
};

constexpr int kStages = 2;

// ---- heads

struct HeadsLayout {
  static constexpr int kXAt = 0, kDyAt = kXAt + kHeadBytes, kStateAt = kDyAt + kHeadBytes;
  static constexpr int kGradientAt = kStateAt + kStateBytes, kStepsAt = kGradientAt + kStateBytes;
  static constexpr int kStageBytes = kStepsAt + kStepBytes;
  static constexpr int kBAt = kStages * kStageBytes, kCAt = kBAt + kGroupBytes;
  static constexpr int kTokensAt = kCAt + kGroupBytes;
  static constexpr int kBytes = kTokensAt + 2 * static_cast<int>(sizeof(TokenSums));
  static_assert(kStageBytes % kPanelAlignment == 0);
};

// From scores g^T and products x dy^T of rows j from `row` on and columns i from `first` on: m = decayed scores,
// rounded; terms E by columns, of the thread's two rows; and their sums by rows, which are added to `sent`.
template <bool kIsDiagonal>
__device__ __forceinline__ void decay_scores(const float (&scores)[32], const float (&products)[32],
                                             const std::byte* steps, int row, int first, uint32_t (&m)[16],
                                             float (&columns)[16], float (&sent)[2]) {
  const float own[2] = {sums_of(steps)[row + own_row(0)] * kLog2E, sums_of(steps)[row + own_row(1)] * kLog2E};
  const float step[2] = {steps_of(steps)[row + own_row(0)], steps_of(steps)[row + own_row(1)]};
  float sums[2] = {};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 sum = *reinterpret_cast<const float2*>(sums_of(steps) + first + own_column(n));
    float terms[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float low = scores[4 * n + 2 * h] * flushed_exp2(sum.x * kLog2E - own[h]);
      float high = scores[4 * n + 2 * h + 1] * flushed_exp2(sum.y * kLog2E - own[h]);
      if constexpr (kIsDiagonal) {
        low = own_column(n) >= own_row(h) ? low : 0.0F;
        high = own_column(n) + 1 >= own_row(h) ? high : 0.0F;
      }
      m[2 * n + h] = bf16_pair(low, high);
      if constexpr (kIsDiagonal) {  // E has no i = j
        low = own_column(n) > own_row(h) ? low : 0.0F;
        high = own_column(n) >= own_row(h) ? high : 0.0F;
      }
      terms[h][0] = products[4 * n + 2 * h] * low;
      terms[h][1] = products[4 * n + 2 * h + 1] * high;
      sums[h] += terms[h][0] + terms[h][1];
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) columns[2 * n + c] = fmaf(step[1], terms[1][c], step[0] * terms[0][c]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) sent[h] = fmaf(step[h], sums[h], sent[h]);
}

// The warp's part of the sum of S dS over all of a state, by a warpgroup.
__device__ inline float state_by_gradient(const std::byte* state, const std::byte* gradient) {
  float sum = 0.0F;
#pragma unroll 2
  for (int turn = 0; turn < kStateBytes / 16 / kWarpgroup; ++turn) {
    const int i = turn * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup;
    float a[8], b[8];
    load8(reinterpret_cast<const Bf16*>(state) + i * 8, a);
    load8(reinterpret_cast<const Bf16*>(gradient) + i * 8, b);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(a[k], b[k], sum);
  }
  return warp_sum(sum);
}

// dx of the warpgroup's tokens from `first` on, and what these have in `tokens`: from sums dz within the chunk, B dS^T
// and C S^T.
__device__ __forceinline__ void finish_rows(const std::byte* stage, int first, float d, int size, Bf16* dx,
                                            int64_t stride, const float (&dz)[32], const float (&behind)[32],
                                            const float (&before)[32], TokenSums& tokens) {
  using L = HeadsLayout;
  const std::byte* const steps = stage + L::kStepsAt;
  const float last = sums_of(steps)[Q - 1];
  float to_states[2] = {}, dsteps[2] = {}, y_by_x[2] = {}, from_states[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + own_row(h);
    const float step = steps_of(steps)[row], sum = sums_of(steps)[row], fade = decay(last - sum);
    store_row(row < size ? dx + row * stride : nullptr, [&](int n) {
      const float2 xs = load_pair(stage + L::kXAt, row, n), dys = load_pair(stage + L::kDyAt, row, n);
      const int at = 4 * n + 2 * h;
      const float low = fmaf(fade, behind[at], dz[at]), high = fmaf(fade, behind[at + 1], dz[at + 1]);
      to_states[h] = fmaf(xs.y, behind[at + 1], fmaf(xs.x, behind[at], to_states[h]));
      from_states[h] = fmaf(dys.y, before[at + 1], fmaf(dys.x, before[at], from_states[h]));
      dsteps[h] = fmaf(xs.y, high, fmaf(xs.x, low, dsteps[h]));
      y_by_x[h] = fmaf(xs.y, dys.y, fmaf(xs.x, dys.x, y_by_x[h]));
      return bf16_pair(fmaf(d, dys.x, step * low), fmaf(d, dys.y, step * high));
    });
    to_states[h] *= fade * step;
    from_states[h] *= decay(sum);
  }
  add_in_quad(to_states);
  add_in_quad(dsteps);
  add_in_quad(y_by_x);
  add_in_quad(from_states);
  if (own_lane() % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + own_row(h);
    tokens.step[row] = steps_of(steps)[row];
    tokens.to_states[row] = to_states[h];
    tokens.dsteps[row] = dsteps[h];
    tokens.y_by_x[row] = y_by_x[h];
    tokens.from_states[row] = from_states[h];
  }
}

// What a warpgroup has of one head: its tokens j, and for r as many rows i. One code for both: what is unrolled for
// each by itself does not fit the instruction cache.
__device__ __forceinline__ void one_head(const std::byte* stage, const std::byte* shared, int half, float d, int size,
                                         Bf16* dx, int64_t stride, TokenSums& tokens) {
  using L = HeadsLayout;
  const int first = half * kRows;
  const std::byte* const steps = stage + L::kStepsAt;
  const auto b = [&](int row) { return wgmma_descriptor(shared + L::kBAt + row * kRowBytes); };
  const auto c = [&](int row) { return wgmma_descriptor(shared + L::kCAt + row * kRowBytes); };
  const auto x = [&](int row) { return wgmma_descriptor(stage + L::kXAt + row * kRowBytes); };
  const auto dy = [&](int row) { return wgmma_descriptor(stage + L::kDyAt + row * kRowBytes); };
  float dz[32] = {}, sent[2] = {};
#pragma unroll 1
  for (int tile = half; tile < Q / kRows; ++tile) {
    const int column = tile * kRows;
    float scores[32], products[32], columns[16];
    uint32_t m[16];
    wgmma_fence();
    multiply_rows<kStatePanels>(b(first), kTokenPanel, c(column), kTokenPanel, scores);
    multiply_rows<1>(x(first), kTokenPanel, dy(column), kTokenPanel, products);
    wgmma_wait_group<0>();
    if (tile == half) {
      decay_scores<true>(scores, products, steps, first, column, m, columns, sent);
    } else {
      decay_scores<false>(scores, products, steps, first, column, m, columns, sent);
    }
    wgmma_fence();
    multiply_mix(m, dy(column), dz);
    add_columns(columns, tokens.received[tile_number(half, tile)][own_warp()]);
    wgmma_wait_group<0>();
  }
  float behind[32], before[32];  // B dS^T, C S^T
  wgmma_fence();
  multiply_rows<kStatePanels>(b(first), kTokenPanel, wgmma_descriptor(stage + L::kGradientAt), kPanelBytes, behind);
  multiply_rows<kStatePanels>(c(first), kTokenPanel, wgmma_descriptor(stage + L::kStateAt), kPanelBytes, before);
  add_in_quad(sent);
  if (own_lane() % 4 == 0) tokens.sent[first + own_row(0)] = sent[0], tokens.sent[first + own_row(1)] = sent[1];
  if (half == 1) {  // it has one tile less
    const float whole = state_by_gradient(stage + L::kStateAt, stage + L::kGradientAt);
    if (own_lane() == 0) tokens.state_by_gradient[own_warp()] = whole;
  }
  wgmma_wait_group<0>();
  finish_rows(stage, first, d, size, dx, stride, dz, behind, before, tokens);
}

// ddt of a head's tokens and the chunk's parts, by a warp.
__device__ void finish_head(const Scan& in, const Gradients& out, const Unit& unit, int head, const TokenSums& tokens) {
  const int first = own_lane() * 4, size = unit.chunk.size();
  const float a = -expf(out.a_log[head]), bias = out.dt_bias[head];
  const float fade = decay(in.sums[head * in.tokens + unit.chunk.end - 1]);
  float dts[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    dts[k] = first + k < size ? to_float(out.dt[(unit.chunk.begin + first + k) * out.dt_stride + head]) : 0.0F;
  }
  float da[4], ddt_sum = 0.0F, da_sum = 0.0F, d_sum = 0.0F;
  gradients_of_sums(tokens, fade, da);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (first + k >= size) continue;
    const float biased = dts[k] + bias;
    const float slope = biased > static_cast<float>(kSoftplusLinearAbove) ? 1.0F : 1.0F / (1.0F + expf(-biased));
    const float ddt = fmaf(a, da[k], tokens.dsteps[first + k]) * slope;
    out.ddt[(unit.chunk.begin + first + k) * out.ddt_stride + head] = from_float<Bf16>(ddt);
    ddt_sum += ddt;
    da_sum = fmaf(tokens.step[first + k], da[k], da_sum);
    d_sum += tokens.y_by_x[first + k];
  }
  const float sums[3] = {warp_sum(ddt_sum), a * warp_sum(da_sum), warp_sum(d_sum)};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (own_lane() == i) out.parts[(int64_t{i} * in.H + head) * out.most_chunks + unit.number] = sums[i];
  }
}

__device__ __forceinline__ void heads_of_group(const Scan& in, const Gradients& out, const Unit& unit, int half,
                                               std::byte* shared) {
  using L = HeadsLayout;
  const auto stage_of = [&](int i) { return shared + i % kStages * L::kStageBytes; };
  const auto load = [&](int i) {
    if (i < unit.heads) {
      const int head = unit.first_head + i;
      std::byte* const stage = stage_of(i);
      load_head(in.x, in.x_stride, unit.chunk, head, stage + L::kXAt);
      load_head(out.dy, int64_t{in.H} * P, unit.chunk, head, stage + L::kDyAt);
      load_state(out.states, unit.chunk.before, in.H, head, stage + L::kStateAt);
      load_state(out.dstates, unit.chunk.after, in.H, head, stage + L::kGradientAt);
      load_steps(in, unit.chunk, head, stage + L::kStepsAt);
    }
    commit_copies();
  };
  load_group(in.b, in.b_stride, unit.chunk, unit.group, shared + L::kBAt);
  load_group(in.c, in.c_stride, unit.chunk, unit.group, shared + L::kCAt);
  load(0);
  auto* const tokens = reinterpret_cast<TokenSums*>(shared + L::kTokensAt);
#pragma unroll 1
  for (int i = 0; i <= unit.heads; ++i) {
    wait_copies<0>();
    fence_proxy_async();  // what was copied is what wgmma reads
    __syncthreads();      // all threads' copies; nobody reads the stage of the head before; and its sums are there
    load(i + 1);
    if (i > 0 && half == 1 && own_warp() == i % kHalfWarps) {
      finish_head(in, out, unit, unit.first_head + i - 1, tokens[(i - 1) % 2]);
    }
    if (i == unit.heads) break;
    const int head = unit.first_head + i;
    one_head(stage_of(i), shared, half, in.d[head], unit.chunk.size(),
             out.dx + unit.chunk.begin * out.dx_stride + head * P, out.dx_stride, tokens[i % 2]);
  }
  __syncthreads();
}

// ---- db and dc

// Of the tokens whose gradient it is (own: x for db, dy for dc), and of the others.
struct RowsLayout {
  static constexpr int kOwnAt = 0, kOtherAt = kOwnAt + kHeadBytes, kStateAt = kOtherAt + kHeadBytes;
  static constexpr int kStepsAt = kStateAt + kStateBytes, kStageBytes = kStepsAt + kStepBytes;
  static constexpr int kGroupAt = kStages * kStageBytes;  // C for db, B for dc
  static constexpr int kBytes = kGroupAt + kGroupBytes;
  static_assert(kStageBytes % kPanelAlignment == 0);
};

// The warpgroup's own rows by factor[h], as wgmma_rows wants them.
__device__ __forceinline__ void scaled_rows(const std::byte* panel, int first, const float (&factor)[2],
                                            uint32_t (&a)[16]) {
  const int matrix = own_lane() / 8, row = first + own_warp() * 16 + matrix % 2 * 8 + own_lane() % 8;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    unsigned values[4];
    load_matrices<false>(panel + swizzled(row, step * 2 + matrix / 2), values);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[4 * step + i] = bf16_pair(__uint_as_float(values[i] << 16) * factor[i % 2],
                                  __uint_as_float(values[i] & 0xFFFF0000U) * factor[i % 2]);
    }
  }
}

// sums += products by decays and steps. Rows are tokens j for db and i for dc, columns the others, from `first` on.
// own: of the thread's rows, log2(e) s, for db less log2(step).
template <bool kIsB, bool kIsDiagonal>
__device__ __forceinline__ void add_score_gradients(const float (&products)[32], const std::byte* steps,
                                                    const float (&own)[2], int first, float (&sums)[32]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 other = *reinterpret_cast<const float2*>(sums_of(steps) + first + own_column(n));
    const float2 step = *reinterpret_cast<const float2*>(steps_of(steps) + first + own_column(n));
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float s = (c == 0 ? other.x : other.y) * kLog2E;
      const int column = own_column(n) + c;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float value = flushed_exp2(kIsB ? s - own[h] : own[h] - s);
        if constexpr (!kIsB) value *= c == 0 ? step.x : step.y;
        const bool sees = !kIsDiagonal || (kIsB ? column >= own_row(h) : column <= own_row(h));
        float& sum = sums[4 * n + 2 * h + c];
        sum = fmaf(sees ? value : 0.0F, products[4 * n + 2 * h + c], sum);
      }
    }
  }
}

// sums += the rounded gradient of scores times rows of C or B.
__device__ __forceinline__ void add_rows(const float (&dscores)[32], const std::byte* rows, float (&gradient)[64]) {
  uint32_t m[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) m[i] = bf16_pair(dscores[2 * i], dscores[2 * i + 1]);
  wgmma_fence();
  multiply_mix(m, wgmma_descriptor<kTokenPanel>(rows), gradient);
  wgmma_wait_group<0>();
}

template <bool kIsB>
__device__ __forceinline__ void rows_of_group(const Scan& in, const Gradients& out, const Unit& unit, int half,
                                              std::byte* shared) {
  using L = RowsLayout;
  const int first = half * kRows, other = kRows - first;
  const bool sees_other = half == (kIsB ? 0 : 1);  // tokens i >= j, or j <= i
  const auto stage_of = [&](int i) { return shared + i % kStages * L::kStageBytes; };
  const int64_t dy_stride = int64_t{in.H} * P;
  const auto load = [&](int i) {
    if (i < unit.heads) {
      const int head = unit.first_head + i;
      std::byte* const stage = stage_of(i);
      load_head(in.x, in.x_stride, unit.chunk, head, stage + (kIsB ? L::kOwnAt : L::kOtherAt));
      load_head(out.dy, dy_stride, unit.chunk, head, stage + (kIsB ? L::kOtherAt : L::kOwnAt));
      load_state(kIsB ? out.dstates : out.states, kIsB ? unit.chunk.after : unit.chunk.before, in.H, head,
                 stage + L::kStateAt);
      load_steps(in, unit.chunk, head, stage + L::kStepsAt);
    }
    commit_copies();
  };
  load_group(kIsB ? in.c : in.b, kIsB ? in.c_stride : in.b_stride, unit.chunk, unit.group, shared + L::kGroupAt);
  load(0);
  float gradient[64] = {}, own_scores[32] = {}, other_scores[32] = {};
#pragma unroll 1
  for (int i = 0; i < unit.heads; ++i) {
    wait_copies<0>();
    fence_proxy_async();  // what was copied is what wgmma reads
    __syncthreads();      // all threads' copies; and nobody reads the stage of the head before any more
    load(i + 1);
    const std::byte* const stage = stage_of(i);
    const std::byte* const steps = stage + L::kStepsAt;
    const uint64_t rows = wgmma_descriptor(stage + L::kOwnAt + first * kRowBytes);
    const auto columns = [&](int row) { return wgmma_descriptor(stage + L::kOtherAt + row * kRowBytes); };
    float products[32], factor[2], own[2];
    wgmma_fence();
    multiply_rows<1>(rows, kTokenPanel, columns(first), kTokenPanel, products);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first + own_row(h);
      const float sum = sums_of(steps)[row], step = steps_of(steps)[row];
      factor[h] = kIsB ? decay(sums_of(steps)[Q - 1] - sum) * step : decay(sum);
      own[h] = kIsB ? sum * kLog2E - flushed_log2(step) : sum * kLog2E;
    }
    uint32_t a[16];
    scaled_rows(stage + L::kOwnAt, first, factor, a);
    wgmma_fence();
    multiply_mix(a, wgmma_descriptor(stage + L::kStateAt), gradient);
    wgmma_wait_group<1>();
    add_score_gradients<kIsB, true>(products, steps, own, first, own_scores);
    if (sees_other) {
      wgmma_fence();
      multiply_rows<1>(rows, kTokenPanel, columns(other), kTokenPanel, products);
      wgmma_wait_group<0>();
      add_score_gradients<kIsB, false>(products, steps, own, other, other_scores);
    }
    wgmma_wait_group<0>();
  }
  add_rows(own_scores, shared + L::kGroupAt + first * kRowBytes, gradient);
  if (sees_other) add_rows(other_scores, shared + L::kGroupAt + other * kRowBytes, gradient);
  const int64_t stride = kIsB ? out.db_stride : out.dc_stride;
  Bf16* const target = (kIsB ? out.db : out.dc) + unit.chunk.begin * stride + unit.group * N;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + own_row(h);
#pragma unroll
    for (int panel = 0; panel < kStatePanels; ++panel) {
      store_row(row < unit.chunk.size() ? target + row * stride + panel * kPanel : nullptr, [&](int n) {
        const int at = panel * 32 + 4 * n + 2 * h;
        return bf16_pair(gradient[at], gradient[at + 1]);
      });
    }
  }
  __syncthreads();  // nobody reads B or C any more
}

// Kinds of blocks: two for the heads, half of the group's each, as they take twice as long.
enum Kind { kFirstHeads, kLastHeads, kDb, kDc, kKinds };
constexpr int kSharedBytes = std::max(HeadsLayout::kBytes, RowsLayout::kBytes) + kPanelAlignment;
static_assert(kSharedBytes <= kMaxSharedBytes);

__global__ void __launch_bounds__(kThreads, 1) ssd_gradients_kernel(Scan in, Gradients out) {
  extern __shared__ std::byte dynamic[];
  std::byte* const shared = aligned_shared(dynamic);
  const int kind = static_cast<int>(blockIdx.x) % kKinds;
  const int half = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // the same in a warp
  const int count = in.count() * in.G, step = static_cast<int>(gridDim.x) / kKinds;
  for (int i = static_cast<int>(blockIdx.x) / kKinds; i < count; i += step) {
    const int heads = in.H / in.G, group = i % in.G, first_part = ceil_div(heads, 2);
    Unit unit{
        .number = i / in.G, .chunk = in.chunks[i / in.G], .group = group, .first_head = group * heads, .heads = heads};
    if (kind <= kLastHeads) {
      if (kind == kLastHeads) unit.first_head += first_part;
      unit.heads = kind == kFirstHeads ? first_part : heads - first_part;
      if (unit.heads > 0) heads_of_group(in, out, unit, half, shared);
    } else if (kind == kDb) {
      rows_of_group<true>(in, out, unit, half, shared);
    } else {
      rows_of_group<false>(in, out, unit, half, shared);
    }
  }
}

}  // namespace
}  // namespace scan

void ssd_gradients(Context& ctx, const SsdBackward& args, const SsdBackwardPlan& plan) {
  using scan::Bf16;
  const SsdInputs& in = args.in;
  const scan::Gradients out{.dy = args.dy.data<Bf16>(),
                            .states = plan.states.data<Bf16>(),
                            .dstates = plan.dstates.data<Bf16>(),
                            .dx = args.dx.rows_data<Bf16>(),
                            .db = args.db.rows_data<Bf16>(),
                            .dc = args.dc.rows_data<Bf16>(),
                            .ddt = args.ddt.rows_data<Bf16>(),
                            .dx_stride = args.dx.stride(),
                            .db_stride = args.db.stride(),
                            .dc_stride = args.dc.stride(),
                            .ddt_stride = args.ddt.stride(),
                            .dt = in.dt.rows_data<Bf16>(),
                            .dt_stride = in.dt.stride(),
                            .dt_bias = in.dt_bias.data<float>(),
                            .a_log = in.a_log.data<float>(),
                            .parts = plan.parts.data<float>(),
                            .most_chunks = plan.parts.dim(2)};
  NMOE_CHECK(aligned16(in.x.rows_raw()) && aligned16(in.b.rows_raw()) && aligned16(in.c.rows_raw()) &&
                 aligned16(out.dy) && aligned16(out.dx) && aligned16(out.db) && aligned16(out.dc),
             "the gradient of a scan of rows that do not begin at multiples of 16 bytes");
  allow_dynamic_shared(scan::ssd_gradients_kernel, scan::kSharedBytes);
  const int64_t units = in.num_seqs * ssd_places(in) * in.b.dim(1);
  scan::ssd_gradients_kernel<<<grid_size(scan::kKinds * units), scan::kThreads, scan::kSharedBytes, ctx.stream>>>(
      ssd::scan_of<Bf16>(in, plan.tables), out);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda::sm90
