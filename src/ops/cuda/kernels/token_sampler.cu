// A block a row. With d = (largest logit) - logit, a token's weight is exp(-d / temperature), rounded to a multiple of
// 2^-40. Every truncation keeps a prefix of the tokens by rising d (equals: by rising id), so that all a step leaves to
// the next is the weight of its prefix; the token is where the prefix sums reach uniform times the last of these.
// Without top_k and top_p the order is that of ids, as infer/sampler.cpp has it.
//
// A place in the order is found by histograms of weights (or counts) over d: 4,096 linear bins first, which spread what
// logits look like, then the bits of d within a bin, 12 at a time: three or four readings of the row, from L2. Bound by
// these: some 30 us a search for 163,840 ids.
#include <cmath>

#include "ops/cuda/kernels/token_sampler.h"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Weight = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBinBits = 12, kBins = 1 << kBinBits, kBinsPerThread = kBins / kThreads;
constexpr float kBinsPerUnit = 128.0F;  // of d, in the first histogram: a power of 2, so that edges are exact
constexpr float kUnit = 0x1p40F;        // of weights: 2^20 ids have sums below 2^60
constexpr unsigned kInfinityBits = 0x7F800000U;

struct Shared {
  Weight bins[kBins];
  Weight warp_sums[kWarps];
  Weight below;  // what a search found
  int found;
};

struct Row {
  const float* logits;
  int vocab;
  float highest, inverse_temperature;

  // Not below 0, maybe infinite; of what is no number infinite.
  __device__ float distance(int id) const {
    const float d = highest - logits[id];
    return d >= 0.0F ? d : INFINITY;
  }
  __device__ Weight weight(float d) const { return __float2ull_rn(expf(-d * inverse_temperature) * kUnit); }
};

// Calls fn(d) for this thread's share of the ids. Loads of several are under way at once: one block reads all of a
// row, and is bound by their latency.
template <class Fn>
__device__ void for_own_ids(const Row& row, const Fn& fn) {
  constexpr int kAtOnce = 8;
  int id = static_cast<int>(threadIdx.x);
  for (; id + (kAtOnce - 1) * kThreads < row.vocab; id += kAtOnce * kThreads) {
    float d[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) d[i] = row.distance(id + i * kThreads);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) fn(d[i]);
  }
  for (; id < row.vocab; id += kThreads) fn(row.distance(id));
}

__device__ Weight inclusive_scan(Weight value, int lane) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Weight other = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += other;
  }
  return value;
}

// Every thread gets the sum over the block.
__device__ Weight sum_block(Weight value, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) shared.warp_sums[warp] = value;
  __syncthreads();
  return warp_sum(shared.warp_sums[lane]);
}
static_assert(kWarps == kWarp, "a lane a warp's sum");

// The first bin where the sum of bins up to it reaches `target` (of at least 1, at most the sum of all), and the sum of
// those before it; for every thread.
__device__ int find_bin(Weight target, Weight& below, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(threadIdx.x) * kBinsPerThread;
  Weight own = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) own += shared.bins[first + i];
  const Weight through = inclusive_scan(own, lane);
  __syncthreads();
  if (lane == kWarp - 1) shared.warp_sums[warp] = through;
  __syncthreads();
  Weight before = through - own;
  for (int w = 0; w < warp; ++w) before += shared.warp_sums[w];
  if (before < target && target <= before + own) {
    int bin = first;
    while (before + shared.bins[bin] < target) before += shared.bins[bin++];
    shared.below = before;
    shared.found = bin;
  }
  __syncthreads();
  below = shared.below;
  return shared.found;
}

struct Place {
  unsigned bits;  // of the d that it is at
  Weight below;   // sum over all with smaller d
};

// Where the sum of weights, or of ones, by rising d reaches `target`.
__device__ Place find_place(const Row& row, Weight target, bool counts, Shared& shared) {
  const auto add_up = [&](auto bin_of) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    for_own_ids(row, [&](float d) {
      const int bin = bin_of(d);
      if (bin < 0) return;
      const Weight value = counts ? 1 : row.weight(d);
      if (value != 0) atomicAdd(&shared.bins[bin], value);
    });
    __syncthreads();
  };
  Place place{0, 0};
  Weight below = 0;
  add_up([](float d) { return static_cast<int>(fminf(d * kBinsPerUnit, kBins - 1)); });
  const int first_bin = find_bin(target, below, shared);
  place.below += below;
  unsigned begin = __float_as_uint(static_cast<float>(first_bin) / kBinsPerUnit);
  unsigned end =
      first_bin == kBins - 1 ? kInfinityBits + 1 : __float_as_uint(static_cast<float>(first_bin + 1) / kBinsPerUnit);
  while (end - begin > 1) {
    const int bits = 32 - __clz(static_cast<int>(end - begin - 1)), shift = max(0, bits - kBinBits);
    add_up([&](float d) {
      const unsigned key = __float_as_uint(d);
      return key >= begin && key < end ? static_cast<int>((key - begin) >> shift) : -1;
    });
    const int bin = find_bin(target - place.below, below, shared);
    place.below += below;
    begin += static_cast<unsigned>(bin) << shift;
    end = min(end, begin + (1U << shift));
  }
  place.bits = begin;
  return place;
}

// The first id where the sum of value(d) over ids up to it reaches `target`, of at least 1 and at most the sum of all.
template <class Value>
__device__ int find_id(const Row& row, Weight target, const Value& value, Shared& shared) {
  constexpr int kAtOnce = 8;  // loads that are under way
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = ceil_div(row.vocab, kWarps), begin = warp * part, end = min(row.vocab, begin + part);
  const auto load = [&](int base, Weight(&values)[kAtOnce]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int id = base + i * kWarp + lane;
      values[i] = id < end ? value(row.distance(id)) : 0;
    }
  };
  Weight own = 0;
  for (int base = begin; base < end; base += kAtOnce * kWarp) {
    Weight values[kAtOnce];
    load(base, values);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own += values[i];
  }
  own = warp_sum(own);
  __syncthreads();
  if (lane == 0) shared.warp_sums[warp] = own;
  __syncthreads();
  Weight before = 0;
  for (int w = 0; w < warp; ++w) before += shared.warp_sums[w];
  if (before < target && target <= before + own) {  // of one warp, for all its lanes
    bool found = false;
    for (int base = begin; base < end && !found; base += kAtOnce * kWarp) {
      Weight values[kAtOnce];
      load(base, values);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Weight through = before + inclusive_scan(values[i], lane);
        const unsigned reached = __ballot_sync(kAllLanes, through >= target);
        if (reached != 0 && !found) {
          found = true;
          if (lane == 0) shared.found = base + i * kWarp + __ffs(static_cast<int>(reached)) - 1;
        }
        before = __shfl_sync(kAllLanes, through, kWarp - 1);
      }
    }
  }
  __syncthreads();
  const int found = shared.found;
  __syncthreads();
  return found;
}

__device__ float block_max(float value, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_max(value);
  if (lane == 0) shared.warp_sums[warp] = __float_as_uint(value);
  __syncthreads();
  return warp_max(__uint_as_float(static_cast<unsigned>(shared.warp_sums[lane])));
}

// A share of `whole`, rounded up, from 1 to whole.
__device__ Weight share_of(double share, Weight whole) {
  const double wanted = ceil(share * static_cast<double>(whole));
  return wanted >= static_cast<double>(whole) ? whole : max(Weight{1}, static_cast<Weight>(wanted));
}

__device__ int sample_row(const float* logits, int vocab, const TokenDraw& draw, Shared& shared) {
  float highest = -INFINITY;
#pragma unroll 8
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kThreads) highest = fmaxf(highest, logits[id]);
  highest = block_max(highest, shared);
  if (!isfinite(highest)) return -1;
  const bool greedy = draw.temperature == 0.0;
  const Row row{logits, vocab, highest, greedy ? 1.0F : static_cast<float>(fmin(1.0 / draw.temperature, 1e30))};
  if (greedy) {
    return find_id(
        row, 1, [](float d) -> Weight { return d == 0.0F ? 1 : 0; }, shared);
  }

  const float farthest = draw.min_p > 0.0 ? static_cast<float>(-log(draw.min_p) * draw.temperature) : INFINITY;
  Weight all = 0, near = 0;  // of all tokens, and of those that min_p leaves
  for_own_ids(row, [&](float d) {
    const Weight weight = row.weight(d);
    all += weight;
    near += d <= farthest ? weight : 0;
  });
  Weight kept = sum_block(all, shared);
  near = sum_block(near, shared);
  const bool cut = (draw.top_k > 0 && draw.top_k < vocab) || draw.top_p < 1.0;
  const auto place_weight = [&](const Place& place) { return row.weight(__uint_as_float(place.bits)); };
  if (draw.top_k > 0 && draw.top_k < vocab) {
    const auto count = static_cast<Weight>(draw.top_k);
    const Place last = find_place(row, count, /*counts=*/true, shared);
    // The weight of that many tokens: of those before it, and of as many as are wanted of its equals.
    Weight before = 0;
    for_own_ids(row, [&](float d) {
      if (__float_as_uint(d) < last.bits) before += row.weight(d);
    });
    kept = sum_block(before, shared) + (count - last.below) * place_weight(last);
  }
  if (draw.top_p < 1.0) {
    const Weight wanted = share_of(draw.top_p, kept);
    const Place last = find_place(row, wanted, /*counts=*/false, shared);
    const Weight weight = place_weight(last), equals = (wanted - last.below + weight - 1) / weight;
    kept = last.below + equals * weight;
  }
  kept = min(kept, near);
  const Weight target = min(kept, static_cast<Weight>(draw.uniform * static_cast<double>(kept)) + 1);
  if (!cut) {
    return find_id(
        row, target, [&](float d) -> Weight { return d <= farthest ? row.weight(d) : 0; }, shared);
  }
  const Place place = find_place(row, target, /*counts=*/false, shared);
  const Weight weight = place_weight(place), number = (target - place.below + weight - 1) / weight;
  return find_id(
      row, number, [&](float d) -> Weight { return __float_as_uint(d) == place.bits ? 1 : 0; }, shared);
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, const TokenDraw* draws, int32_t* tokens, int64_t width, int vocab) {
  __shared__ Shared shared;
  const int token = sample_row(logits + static_cast<int64_t>(blockIdx.x) * width, vocab, draws[blockIdx.x], shared);
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

__global__ void __launch_bounds__(kThreads) penalise_kernel(float* logits, const TokenDraw* draws, const int2* seen,
                                                            int64_t num_seen, int64_t num_rows, int64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= num_seen) return;
  const auto [row, id] = seen[i];
  if (row < 0 || row >= num_rows || id < 0 || id >= width) return;
  const auto penalty = static_cast<float>(draws[row].penalty);
  float& logit = logits[row * width + id];
  logit = logit > 0.0F ? logit / penalty : logit * penalty;
}

}  // namespace

void sample_tokens(Context& ctx, const SampleTokens& args) {
  const int64_t num_rows = args.logits.dim(0), width = args.logits.dim(1);
  NMOE_CHECK(args.logits.dtype() == DType::kF32 && args.vocab >= 1 && args.vocab <= width && args.vocab <= 1 << 20 &&
                 args.draws.num_bytes() == num_rows * static_cast<int64_t>(sizeof(TokenDraw)) &&
                 args.tokens.dim(0) == num_rows,
             "sampling {} of logits {}, draws {}, tokens {}", args.vocab, args.logits.shape(), args.draws.shape(),
             args.tokens.shape());
  if (ctx.counting() || num_rows == 0) return;
  const auto* draws = static_cast<const TokenDraw*>(args.draws.raw());
  const int vocab = static_cast<int>(args.vocab);
  sample_kernel<<<grid_size(num_rows), kThreads, 0, ctx.stream>>>(args.logits.data<float>(), draws,
                                                                  args.tokens.data<int32_t>(), width, vocab);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void penalise_logits(Context& ctx, const PenaliseLogits& args) {
  const int64_t num_rows = args.logits.dim(0), width = args.logits.dim(1), num_seen = args.seen.dim(0);
  NMOE_CHECK(args.logits.dtype() == DType::kF32 && args.seen.dim(1) == 2 &&
                 args.draws.num_bytes() == num_rows * static_cast<int64_t>(sizeof(TokenDraw)),
             "penalties of logits {}, draws {}, seen {}", args.logits.shape(), args.draws.shape(), args.seen.shape());
  if (ctx.counting() || num_seen == 0) return;
  penalise_kernel<<<grid_size(ceil_div<int64_t>(num_seen, kThreads)), kThreads, 0, ctx.stream>>>(
      args.logits.data<float>(), static_cast<const TokenDraw*>(args.draws.raw()),
      static_cast<const int2*>(args.seen.raw()), num_seen, num_rows, width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
