// A row is a cluster's, of one block where there are many rows. With d = (largest logit) - logit, a token's weight is
// exp(-d / temperature), rounded to a multiple of 2^-40. Every truncation keeps a prefix of the tokens by rising d
// (equals: by rising id), so that all a step leaves to the next is the weight of its prefix; the token is where the
// prefix sums reach uniform times the last of these. Without top_k and top_p the order is that of ids, as
// infer/sampler.cpp has it.
//
// A place in the order is found by histograms of weights (or counts) over d: 4,096 linear bins first, which spread what
// logits look like, then the bits of d within a bin, 12 at a time: three or four readings of the row. Blocks of a
// cluster read a part of it each, after the first time from their L1, and add their histograms up through each other's
// shared memory, a slice of the bins each. All sums are of integers, so that it does not show how many there are.
#include <cooperative_groups.h>
#include <math_constants.h>

#include <cmath>

#include "ops/cuda/kernels/vocabulary/token_sampler.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

using Weight = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBinBits = 12, kBins = 1 << kBinBits;
constexpr float kBinsPerUnit = 128.0F;  // of d, in the first histogram: a power of 2, so that edges are exact
constexpr float kUnit = 0x1p40F;        // of weights
constexpr unsigned kInfinityBits = 0x7F800000U;

struct Shared {
  Weight bins[kBins];
  Weight warp_sums[kWarps];
  Weight own;    // what this block tells the others
  Weight below;  // what a search found, in all blocks
  int found;
};

// The blocks of a row: a cluster of kBlocks.
template <int kNumBlocks>
struct RowBlocks {
  static constexpr int kBlocks = kNumBlocks;
  Shared& shared;

  __device__ int rank() const {
    if constexpr (kBlocks == 1) return 0;
    return static_cast<int>(cooperative_groups::this_cluster().block_rank());
  }
  // A barrier for all threads of all blocks.
  __device__ void sync() const {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      cooperative_groups::this_cluster().sync();
    }
  }
  __device__ Shared& of(int block) const {
    if constexpr (kBlocks == 1) return shared;
    return *cooperative_groups::this_cluster().map_shared_rank(&shared, static_cast<unsigned>(block));
  }
  // For every block, by one thread of all.
  __device__ void tell_found(int found, Weight below) const {
    for (int block = 0; block < kBlocks; ++block) of(block).found = found, of(block).below = below;
  }
};

struct Row {
  const float* logits;
  int vocab;
  float highest, inverse_temperature;

  // Not below 0, maybe infinite; of what is not a number infinite.
  __device__ float distance(int id) const {
    const float d = highest - logits[id];
    return d >= 0.0F ? d : INFINITY;
  }
  __device__ Weight weight(float d) const { return __float2ull_rn(expf(-d * inverse_temperature) * kUnit); }
};

// Calls fn(d) for this thread's share of the ids. Loads of several are under way at once.
template <class Blocks, class Fn>
__device__ void for_own_ids(const Row& row, const Blocks& blocks, const Fn& fn) {
  constexpr int kAtOnce = 8, kStep = Blocks::kBlocks * kThreads;
  int id = blocks.rank() * kThreads + static_cast<int>(threadIdx.x);
  for (; id + (kAtOnce - 1) * kStep < row.vocab; id += kAtOnce * kStep) {
    float d[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) d[i] = row.distance(id + i * kStep);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) fn(d[i]);
  }
  for (; id < row.vocab; id += kStep) fn(row.distance(id));
}

__device__ Weight inclusive_scan(Weight value, int lane) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const Weight other = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += other;
  }
  return value;
}

// Sums of what the blocks have: of those before this one, and of all. `own` is the same in all threads of a block.
struct BlockSums {
  Weight before = 0, all = 0;
};
template <class Blocks>
__device__ BlockSums sum_blocks(Weight own, const Blocks& blocks) {
  if constexpr (Blocks::kBlocks == 1) return {0, own};
  if (threadIdx.x == 0) blocks.shared.own = own;
  blocks.sync();
  BlockSums sums;
  for (int block = 0; block < Blocks::kBlocks; ++block) {
    const Weight value = blocks.of(block).own;
    if (block < blocks.rank()) sums.before += value;
    sums.all += value;
  }
  blocks.sync();
  return sums;
}

// Every thread gets the sum over the row's.
template <class Blocks>
__device__ Weight sum_row(Weight value, const Blocks& blocks) {
  Shared& shared = blocks.shared;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) shared.warp_sums[warp] = value;
  __syncthreads();
  return sum_blocks(warp_sum(shared.warp_sums[lane]), blocks).all;
}
static_assert(kWarps == kWarp, "a lane a warp's sum");

// The first bin where the sum of all blocks' bins up to it reaches `target` (of at least 1, at most the sum of all),
// and the sum of those before it; for every thread. A block has a slice of the bins.
template <class Blocks>
__device__ int find_bin(Weight target, Weight& below, const Blocks& blocks) {
  constexpr int kSlice = kBins / Blocks::kBlocks, kPerThread = (kSlice + kThreads - 1) / kThreads;
  Shared& shared = blocks.shared;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int in_slice = static_cast<int>(threadIdx.x) * kPerThread, first = blocks.rank() * kSlice + in_slice;
  Weight bins[kPerThread] = {}, own = 0;
  if (in_slice < kSlice) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int block = 0; block < Blocks::kBlocks; ++block) bins[i] += blocks.of(block).bins[first + i];
      own += bins[i];
    }
  }
  const Weight through = inclusive_scan(own, lane);
  __syncthreads();
  if (lane == kWarp - 1) shared.warp_sums[warp] = through;
  __syncthreads();
  const Weight slice = warp_sum(shared.warp_sums[lane]);
  Weight before = sum_blocks(slice, blocks).before + through - own;
  for (int w = 0; w < warp; ++w) before += shared.warp_sums[w];
  if (before < target && target <= before + own) {
    int i = 0;
#pragma unroll
    for (int b = 0; b + 1 < kPerThread; ++b) {
      if (i == b && before + bins[b] < target) before += bins[b], i = b + 1;
    }
    blocks.tell_found(first + i, before);
  }
  blocks.sync();
  below = shared.below;
  return shared.found;
}

struct Place {
  unsigned bits;  // of the d that it is at
  Weight below;   // sum over all with smaller d
};

// Where the sum of weights, or of ones, by rising d reaches `target`.
template <class Blocks>
__device__ Place find_place(const Row& row, Weight target, bool counts, const Blocks& blocks) {
  Shared& shared = blocks.shared;
  const auto add_up = [&](auto bin_of) {
    blocks.sync();  // the bins and what was found have been read
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    for_own_ids(row, blocks, [&](float d) {
      const int bin = bin_of(d);
      if (bin < 0) return;
      const Weight value = counts ? 1 : row.weight(d);
      if (value != 0) atomicAdd(&shared.bins[bin], value);
    });
    blocks.sync();
  };
  Place place{0, 0};
  Weight below = 0;
  add_up([](float d) { return static_cast<int>(fminf(d * kBinsPerUnit, kBins - 1)); });
  const int first_bin = find_bin(target, below, blocks);
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
    const int bin = find_bin(target - place.below, below, blocks);
    place.below += below;
    begin += static_cast<unsigned>(bin) << shift;
    end = min(end, begin + (1U << shift));
  }
  place.bits = begin;
  return place;
}

// The first id where the sum of value(d) over ids up to it reaches `target`, of at least 1 and at most the sum of all.
template <class Blocks, class Value>
__device__ int find_id(const Row& row, Weight target, const Value& value, const Blocks& blocks) {
  constexpr int kAtOnce = 8;  // loads that are under way
  Shared& shared = blocks.shared;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = ceil_div(row.vocab, Blocks::kBlocks * kWarps), begin = (blocks.rank() * kWarps + warp) * part;
  const int end = min(row.vocab, begin + part);
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
  Weight before = sum_blocks(warp_sum(shared.warp_sums[lane]), blocks).before;
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
          if (lane == 0) blocks.tell_found(base + i * kWarp + __ffs(static_cast<int>(reached)) - 1, 0);
        }
        before = __shfl_sync(kAllLanes, through, kWarp - 1);
      }
    }
  }
  blocks.sync();
  return shared.found;
}

template <class Blocks>
__device__ float row_max(float value, const Blocks& blocks) {
  Shared& shared = blocks.shared;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  value = warp_max(value);
  if (lane == 0) shared.warp_sums[warp] = __float_as_uint(value);
  __syncthreads();
  value = warp_max(__uint_as_float(static_cast<unsigned>(shared.warp_sums[lane])));
  if (threadIdx.x == 0) shared.own = __float_as_uint(value);
  blocks.sync();
  for (int block = 0; block < Blocks::kBlocks; ++block) {
    value = fmaxf(value, __uint_as_float(static_cast<unsigned>(blocks.of(block).own)));
  }
  blocks.sync();
  return value;
}

// A share of `whole`, rounded up, from 1 to whole.
__device__ Weight share_of(double share, Weight whole) {
  const double wanted = ceil(share * static_cast<double>(whole));
  return wanted >= static_cast<double>(whole) ? whole : max(Weight{1}, static_cast<Weight>(wanted));
}

template <class Blocks>
__device__ int sample_row(const float* logits, int vocab, const TokenDraw& draw, const Blocks& blocks) {
  float highest = -INFINITY;
#pragma unroll 8
  for (int id = blocks.rank() * kThreads + static_cast<int>(threadIdx.x); id < vocab;
       id += Blocks::kBlocks * kThreads) {
    highest = fmaxf(highest, logits[id]);
  }
  highest = row_max(highest, blocks);
  if (!isfinite(highest)) return -1;
  const bool greedy = draw.temperature == 0.0;
  const Row row{logits, vocab, highest, greedy ? 1.0F : static_cast<float>(fmin(1.0 / draw.temperature, 1e30))};
  if (greedy) {
    return find_id(
        row, 1, [](float d) -> Weight { return d == 0.0F ? 1 : 0; }, blocks);
  }

  const float farthest = draw.min_p > 0.0 ? static_cast<float>(-log(draw.min_p) * draw.temperature) : INFINITY;
  Weight all = 0, near = 0;  // of all tokens, and of those that min_p leaves
  for_own_ids(row, blocks, [&](float d) {
    const Weight weight = row.weight(d);
    all += weight;
    near += d <= farthest ? weight : 0;
  });
  Weight kept = sum_row(all, blocks);
  near = sum_row(near, blocks);
  const bool cut = (draw.top_k > 0 && draw.top_k < vocab) || draw.top_p < 1.0;
  const auto place_weight = [&](const Place& place) { return row.weight(__uint_as_float(place.bits)); };
  if (draw.top_k > 0 && draw.top_k < vocab) {
    const auto count = static_cast<Weight>(draw.top_k);
    const Place last = find_place(row, count, /*counts=*/true, blocks);
    // The weight of that many tokens: of those before it, and of as many as are wanted of its equals.
    Weight before = 0;
    for_own_ids(row, blocks, [&](float d) {
      if (__float_as_uint(d) < last.bits) before += row.weight(d);
    });
    kept = sum_row(before, blocks) + (count - last.below) * place_weight(last);
  }
  if (draw.top_p < 1.0) {
    const Weight wanted = share_of(draw.top_p, kept);
    const Place last = find_place(row, wanted, /*counts=*/false, blocks);
    const Weight weight = place_weight(last), equals = (wanted - last.below + weight - 1) / weight;
    kept = last.below + equals * weight;
  }
  kept = min(kept, near);
  const Weight target = min(kept, static_cast<Weight>(draw.uniform * static_cast<double>(kept)) + 1);
  if (!cut) {
    return find_id(
        row, target, [&](float d) -> Weight { return d <= farthest ? row.weight(d) : 0; }, blocks);
  }
  const Place place = find_place(row, target, /*counts=*/false, blocks);
  const Weight weight = place_weight(place), number = (target - place.below + weight - 1) / weight;
  return find_id(
      row, number, [&](float d) -> Weight { return __float_as_uint(d) == place.bits ? 1 : 0; }, blocks);
}

template <int kBlocks>
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, const TokenDraw* draws, int32_t* tokens, int64_t width, int vocab) {
  __shared__ Shared shared;
  begin_behind_work_before();
  const RowBlocks<kBlocks> blocks{shared};
  const int64_t row = blockIdx.x / kBlocks;
  const int token = sample_row(logits + row * width, vocab, draws[row], blocks);
  if (threadIdx.x == 0 && blocks.rank() == 0) tokens[row] = token;
  blocks.sync();  // a block's shared memory is there until all have ended
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

__global__ void __launch_bounds__(kThreads)
    pick_kernel(const float* logits, const int2* ids, float* picked, int64_t count, int64_t num_rows, int64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto [row, id] = ids[i];
  const bool is_there = row >= 0 && row < num_rows && id >= 0 && id < width;
  picked[i] = is_there ? logits[row * width + id] : CUDART_NAN_F;
}

}  // namespace

void sample_tokens(Context& ctx, const SampleTokens& args) {
  const int64_t num_rows = args.logits.dim(0), width = args.logits.dim(1);
  NMOE_CHECK(args.logits.dtype() == DType::kF32 && args.vocab >= 1 && args.vocab <= width &&
                 args.vocab <= kMostSampledIds &&
                 args.draws.num_bytes() == num_rows * static_cast<int64_t>(sizeof(TokenDraw)) &&
                 args.tokens.dim(0) == num_rows,
             "sampling {} of logits {}, draws {}, tokens {}", args.vocab, args.logits.shape(), args.draws.shape(),
             args.tokens.shape());
  if (num_rows == 0) return;
  const auto* draws = static_cast<const TokenDraw*>(args.draws.raw());
  const int vocab = static_cast<int>(args.vocab);
  const auto run = [&](auto kernel, int blocks) {
    launch_clusters(ctx, kernel, grid_size(num_rows * blocks), kThreads, blocks, 0, args.logits.data<float>(), draws,
                    args.tokens.data<int32_t>(), width, vocab);
  };
  constexpr int64_t kFewRows = 32;  // that do not fill the device with a block each
  if (num_rows <= kFewRows) {
    run(sample_kernel<8>, 8);
  } else {
    run(sample_kernel<1>, 1);
  }
}

void penalise_logits(Context& ctx, const PenaliseLogits& args) {
  const int64_t num_rows = args.logits.dim(0), width = args.logits.dim(1), num_seen = args.seen.dim(0);
  NMOE_CHECK(args.logits.dtype() == DType::kF32 && args.seen.dim(1) == 2 &&
                 args.draws.num_bytes() == num_rows * static_cast<int64_t>(sizeof(TokenDraw)),
             "penalties of logits {}, draws {}, seen {}", args.logits.shape(), args.draws.shape(), args.seen.shape());
  if (num_seen == 0) return;
  penalise_kernel<<<grid_size(ceil_div<int64_t>(num_seen, kThreads)), kThreads, 0, ctx.stream>>>(
      args.logits.data<float>(), static_cast<const TokenDraw*>(args.draws.raw()),
      static_cast<const int2*>(args.seen.raw()), num_seen, num_rows, width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void pick_logits(Context& ctx, const PickLogits& args) {
  const int64_t count = args.ids.dim(0);
  NMOE_CHECK(args.logits.dtype() == DType::kF32 && args.ids.dim(1) == 2 && args.picked.dim(0) == count,
             "picking {} of logits {} into {}", args.ids.shape(), args.logits.shape(), args.picked.shape());
  if (count == 0) return;
  pick_kernel<<<grid_size(ceil_div<int64_t>(count, kThreads)), kThreads, 0, ctx.stream>>>(
      args.logits.data<float>(), static_cast<const int2*>(args.ids.raw()), args.picked.data<float>(), count,
      args.logits.dim(0), args.logits.dim(1));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
