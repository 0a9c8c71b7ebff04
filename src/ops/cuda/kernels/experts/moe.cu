// Placement plan of routed rows, and what moves rows by it.
//
// The plan is a stable counting sort of the R = T*K copies in two kernels: blocks count the copies of their chunk per
// expert; then each adds up the counts [chunk, expert] of all, which says where its chunk's rows of every expert begin,
// and places its copies. There a warp has a segment of the chunk, whose own counts say where in the chunk's rows it
// goes on, and places 32 copies at a time, in order. All integers: shared atomics count, no order depends on them.
// Bound by latency: the counts of all chunks come from L2, a thread an expert.
//
// At most kMaxExperts experts.
//
// The rest is memory-bound: dispatch reads a token once and writes K rows, combine reads K rows and writes a token.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_part.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 128;     // of a block that moves the rows of one token
constexpr int kCountThreads = 1024;  // of a block that counts a chunk
constexpr int kMaxPlaceWarps = 16;   // of a block that places one, each with counts [E] in shared memory
static_assert(kMaxExperts * static_cast<int64_t>(sizeof(int32_t)) <= kDefaultSharedBytes);

// Which copies have a row.
struct Parts {
  const int32_t* sizes;  // null: all have
  int64_t part_copies;   // of a part's room
  int top_k;

  __device__ bool has_row(int64_t copy, int expert) const {
    return sizes == nullptr ||
           (expert >= 0 && copy % part_copies < static_cast<int64_t>(sizes[copy / part_copies]) * top_k);
  }
};

// counts[chunk][e] = copies of e in the chunk. One block a chunk.
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const int32_t* experts, Parts parts, int32_t* counts, int64_t num_copies, int64_t chunk_copies,
                 int num_experts) {
  extern __shared__ int32_t chunk_counts[];
  begin_behind_work_before();
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kCountThreads) chunk_counts[i] = 0;
  __syncthreads();
  const int64_t chunk = blockIdx.x, begin = chunk * chunk_copies, end = min(begin + chunk_copies, num_copies);
  for (int64_t copy = begin + threadIdx.x; copy < end; copy += kCountThreads) {
    if (!parts.has_row(copy, experts[copy])) continue;
    const int expert = experts[copy];
    if (expert < 0 || expert >= num_experts) __trap();
    atomicAdd(&chunk_counts[expert], 1);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kCountThreads) {
    counts[chunk * num_experts + i] = chunk_counts[i];
  }
}

// The sum of `value` over the threads before this one; `total` gets the sum over all. A block of whole warps.
__device__ int exclusive_scan(int value, int& total) {
  __shared__ int warp_ends[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto warp_inclusive = [lane](int x) {
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, x, offset);
      if (lane >= offset) x += below;
    }
    return x;
  };
  const int inclusive = warp_inclusive(value);
  __syncthreads();  // a call before this one has read warp_ends
  if (lane == kWarp - 1) warp_ends[warp] = inclusive;
  __syncthreads();
  const int ends = warp_inclusive(lane < static_cast<int>(blockDim.x) / kWarp ? warp_ends[lane] : 0);
  total = __shfl_sync(kAllLanes, ends, kWarp - 1);
  const int before = __shfl_sync(kAllLanes, ends, max(warp - 1, 0));
  return inclusive - value + (warp > 0 ? before : 0);
}

// row_of = and token_of = (may be null), by one block a chunk; the first also writes offsets = [E + 1] and loads [E] +=
// (may be null).
__global__ void __launch_bounds__(kMaxPlaceWarps* kWarp)
    place_kernel(const int32_t* experts, Parts parts, const int32_t* counts, int32_t* offsets, int32_t* loads,
                 int32_t* row_of, int32_t* token_of, int64_t num_copies, int64_t chunk_copies, int64_t num_chunks,
                 int num_experts) {
  begin_behind_work_before();
  extern __shared__ int32_t next_rows[];  // [warps][E]: first how many copies a segment has, then where they go on
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  int32_t* const next = next_rows + warp * num_experts;
  const int64_t chunk = blockIdx.x, chunk_begin = chunk * chunk_copies;
  const int64_t chunk_end = min(chunk_begin + chunk_copies, num_copies);
  const int64_t segment = ceil_div(chunk_copies, static_cast<int64_t>(warps));
  const int64_t begin = chunk_begin + warp * segment, end = min(begin + segment, chunk_end);

  for (int i = static_cast<int>(threadIdx.x); i < warps * num_experts; i += threads) next_rows[i] = 0;
  __syncthreads();
  for (int64_t copy = begin + lane; copy < end; copy += kWarp) {
    if (parts.has_row(copy, experts[copy])) atomicAdd(&next[experts[copy]], 1);
  }
  __syncthreads();

  int base = 0;  // the rows of experts of rounds before
  for (int first = 0; first < num_experts; first += threads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    int before = 0, count = 0;  // in the chunks before this one, in all
    if (expert < num_experts) {
#pragma unroll 16  // that many loads at once
      for (int64_t i = 0; i < num_chunks; ++i) {
        const int in_chunk = counts[i * num_experts + expert];
        count += in_chunk;
        if (i < chunk) before += in_chunk;
      }
    }
    int total;
    const int expert_row = base + exclusive_scan(count, total);
    base += total;
    if (expert >= num_experts) continue;
    if (chunk == 0) {
      offsets[expert] = expert_row;
      if (loads != nullptr) loads[expert] += count;
    }
    int row = expert_row + before;
    for (int i = 0; i < warps; ++i) {
      int32_t& slot = next_rows[i * num_experts + expert];
      const int in_segment = slot;
      slot = row;
      row += in_segment;
    }
  }
  if (chunk == 0 && threadIdx.x == 0) offsets[num_experts] = base;
  __syncthreads();

  for (int64_t first = begin; first < end; first += kWarp) {
    const int64_t copy = first + lane;
    const bool active = copy < end && parts.has_row(copy, experts[copy]);
    const int expert = active ? experts[copy] : -1;
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int rank = __popc(same & ((1U << lane) - 1));  // copies of the same expert before this one
    const int row = active ? next[expert] + rank : -1;
    if (copy < end) row_of[copy] = row;
    if (active && token_of != nullptr) token_of[row] = static_cast<int32_t>(copy / parts.top_k);
    __syncwarp();
    if (active && rank == 0) next[expert] += __popc(same);
    __syncwarp();
  }
}

// parts [P, num_offsets] =
__global__ void __launch_bounds__(kThreads) divide_kernel(const int32_t* offsets, int32_t* parts, int64_t num_parts,
                                                          int64_t num_offsets, int64_t capacity, int64_t chunk) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, part = i / num_offsets;
  if (part >= num_parts) return;
  const int64_t first = part == 0 ? 0 : capacity + (part - 1) * chunk, most = part == 0 ? capacity : chunk;
  parts[i] = static_cast<int32_t>(min(max(offsets[i % num_offsets] - first, int64_t{0}), most));
}

// Unit: the widest type a row is a whole number of. One block a token, or for several in turn.
template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    dispatch_kernel(const Unit* x, RowPart part, Unit* rows, int64_t num_tokens, int64_t width, int top_k) {
  if (part.is_empty()) return;
  for (int64_t token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    for (int64_t i = threadIdx.x; i < width; i += kRowThreads) {
      const Unit value = x[token * width + i];
      for (int k = 0; k < top_k; ++k) {
        const int64_t row = part.place(token * top_k + k);
        if (row >= 0) rows[row * width + i] = value;
      }
    }
  }
}

// The same of what codes stand for, and of the codes (row_values, row_scales; may be null). kVectors: eight values at a
// time.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kRowThreads)
    dispatch_codes_kernel(CodedValues x, RowPart part, T* rows, uint8_t* row_values, uint8_t* row_scales,
                          int64_t num_tokens, int top_k) {
  if (part.is_empty()) return;
  constexpr int kAtOnce = kVectors ? 8 : 1;
  for (int64_t token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    for (int64_t i = kAtOnce * threadIdx.x; i < x.width; i += kAtOnce * kRowThreads) {
      float values[kAtOnce];
      if constexpr (kVectors) {
        x.load8(token, i, values);
      } else {
        values[0] = x.at(token, i);
      }
      using Codes = std::conditional_t<kVectors, uint2, uint8_t>;
      const auto codes_at = [&](auto* all, int64_t row) { return reinterpret_cast<Codes*>(all + row * x.width + i); };
      const Codes codes = *reinterpret_cast<const Codes*>(x.values + token * x.width + i);
      const uint8_t scale = x.scales[token * x.across + i / CodedValues::kBlock];
      for (int k = 0; k < top_k; ++k) {
        const int64_t row = part.place(token * top_k + k);
        if (row < 0) continue;
        store_values(rows + row * x.width + i, values);
        if (row_values == nullptr) continue;
        *codes_at(row_values, row) = codes;
        if (i % CodedValues::kBlock == 0) row_scales[row * x.across + i / CodedValues::kBlock] = scale;
      }
    }
  }
}

// Blocks (token, part of its values). kVectors: eight values at a time.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kRowThreads)
    combine_kernel(const T* rows, const int32_t* row_of, T* y, int64_t width, int top_k, bool accumulate) {
  begin_behind_work_before();
  const int64_t token = blockIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kRowThreads;
  T* target = y + token * width;
  if constexpr (kVectors) {
    for (int64_t i = 8 * first; i < width; i += 8 * step) {
      float sums[8] = {};
      if (accumulate) load8(target + i, sums);
#pragma unroll 4
      for (int k = 0; k < top_k; ++k) {
        float values[8];
        load8(rows + row_of[token * top_k + k] * width + i, values);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] += values[j];
      }
      store8(target + i, sums);
    }
  } else {
    for (int64_t i = first; i < width; i += step) {
      float sum = accumulate ? to_float(target[i]) : 0.0F;
      for (int k = 0; k < top_k; ++k) sum += to_float(rows[row_of[token * top_k + k] * width + i]);
      target[i] = from_float<T>(sum);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    dispatch_weights_kernel(const float* weights, RowPart part, float* row_weight, int64_t num_copies) {
  begin_behind_work_before();
  const int64_t copy = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (copy >= num_copies || part.is_empty()) return;
  const int64_t row = part.place(copy);
  if (row >= 0) row_weight[row] = weights[copy];
}

__global__ void __launch_bounds__(kThreads)
    combine_weights_kernel(const float* row_weight, const int32_t* row_of, float* weights, int64_t num_copies) {
  const int64_t copy = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (copy < num_copies) weights[copy] = row_weight[row_of[copy]];
}

RowPart row_part(const MoePlan& plan, Tensor rows) {
  const int32_t* num_rows = plan.first_row > 0 ? plan.offsets.data<int32_t>() + plan.offsets.dim(0) - 1 : nullptr;
  return {
      .row_of = plan.row_of.data<int32_t>(), .num_rows = num_rows, .first = plan.first_row, .capacity = rows.dim(0)};
}

// Of a kernel that moves the rows of one token a block. A part of the rows that are not the first is often empty, and
// then over soonest with few blocks.
unsigned token_blocks(const Context& ctx, const MoePlan& plan, int64_t num_tokens) {
  constexpr int64_t kBlocksPerSm = 16;
  return grid_size(plan.first_row > 0 ? std::min(num_tokens, kBlocksPerSm * ctx.num_sms) : num_tokens);
}

void dispatch_codes(Context& ctx, const MoeDispatch& args) {
  const Tensor rows = args.rows;
  const int64_t num_tokens = args.codes.values.dim(0);
  if (args.codes.values.num_elements() == 0) return;
  const auto data_of = [](const Tensor& codes) { return codes.data_or_null<uint8_t>(); };
  const bool eights = in_eights(args.codes, rows) && std::bit_cast<uintptr_t>(args.row_codes.values.raw()) % 8 == 0;
  dispatch_act(rows.dtype(), [&]<class T>(T) {
    const auto kernel = eights ? dispatch_codes_kernel<T, true> : dispatch_codes_kernel<T, false>;
    kernel<<<token_blocks(ctx, args.plan, num_tokens), kRowThreads, 0, ctx.stream>>>(
        coded_values(args.codes), row_part(args.plan, rows), rows.data<T>(), data_of(args.row_codes.values),
        data_of(args.row_codes.scales), num_tokens, static_cast<int>(args.plan.row_of.dim(1)));
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

unsigned weight_blocks(Tensor weights) {
  return static_cast<unsigned>(ceil_div<int64_t>(weights.num_elements(), kThreads));
}

}  // namespace

void build_moe_plan(Context& ctx, const BuildMoePlan& args, const Tensor& chunk_counts) {
  const Tensor top_idx = args.top_idx, counts = args.counts;
  const MoePlan& plan = args.plan;

  const int64_t num_copies = top_idx.num_elements(), num_experts = plan.offsets.dim(0) - 1;
  const int64_t chunk_copies = plan_chunk_copies(num_copies);
  const int64_t num_chunks = chunk_counts.dim(0);
  const int32_t* experts = top_idx.data<int32_t>();
  const bool has_parts = args.part_sizes.defined();
  const Parts parts{.sizes = has_parts ? args.part_sizes.data<int32_t>() : nullptr,
                    .part_copies = has_parts ? num_copies / args.part_sizes.dim(0) : num_copies,
                    .top_k = static_cast<int>(top_idx.dim(1))};
  const auto expert_bytes = num_experts * static_cast<int64_t>(sizeof(int32_t));

  if (num_chunks > 0) {
    launch_early(ctx, count_kernel, grid_size(num_chunks), kCountThreads, expert_bytes, experts, parts,
                 chunk_counts.data<int32_t>(), num_copies, chunk_copies, static_cast<int>(num_experts));
  }
  // The counts of all warps have no room in shared memory for kMaxExperts, those of half of them do.
  const int place_warps = num_experts <= 1024 ? kMaxPlaceWarps : kMaxPlaceWarps / 2;
  const int64_t place_bytes = place_warps * expert_bytes;
  if (place_bytes + kWarp * static_cast<int64_t>(sizeof(int32_t)) > kDefaultSharedBytes)
    allow_dynamic_shared(place_kernel, static_cast<int>(place_bytes));
  // Without copies there are offsets all the same.
  launch_early(ctx, place_kernel, grid_size(std::max<int64_t>(num_chunks, 1)), place_warps * kWarp, place_bytes,
               experts, parts, chunk_counts.data<int32_t>(), plan.offsets.data<int32_t>(),
               counts.data_or_null<int32_t>(), plan.row_of.data<int32_t>(), plan.token_of.data_or_null<int32_t>(),
               num_copies, chunk_copies, num_chunks, static_cast<int>(num_experts));
}

void divide_moe_rows(Context& ctx, const DivideMoeRows& args) {
  if (args.parts.num_elements() == 0) return;
  divide_kernel<<<grid_size(ceil_div<int64_t>(args.parts.num_elements(), kThreads)), kThreads, 0, ctx.stream>>>(
      args.offsets.data<int32_t>(), args.parts.data<int32_t>(), args.parts.dim(0), args.parts.dim(1), args.capacity,
      args.chunk);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void moe_dispatch(Context& ctx, const MoeDispatch& args) {
  const Tensor x = args.x, rows = args.rows;
  const MoePlan& plan = args.plan;

  if (args.codes.defined()) return dispatch_codes(ctx, args);
  if (x.num_elements() == 0) return;
  const int64_t row_bytes = x.dim(1) * static_cast<int64_t>(dtype_bytes(x.dtype()));
  const auto run = [&]<class Unit>(Unit) {
    dispatch_kernel<<<token_blocks(ctx, plan, x.dim(0)), kRowThreads, 0, ctx.stream>>>(
        static_cast<const Unit*>(x.raw()), row_part(plan, rows), static_cast<Unit*>(rows.raw()), x.dim(0),
        row_bytes / static_cast<int64_t>(sizeof(Unit)), static_cast<int>(plan.row_of.dim(1)));
    NMOE_CUDA_CHECK(cudaGetLastError());
  };
  if (row_bytes % 16 == 0 && aligned16(x.raw()) && aligned16(rows.raw())) {
    run(uint4{});
  } else if (x.dtype() == DType::kBF16) {
    run(uint16_t{});
  } else {
    NMOE_CHECK(x.dtype() == DType::kF32, "dispatch of {}", dtype_name(x.dtype()));
    run(uint32_t{});
  }
}

void moe_combine(Context& ctx, const MoeCombine& args) {
  const Tensor rows = args.rows, y = args.y;
  const MoePlan& plan = args.plan;

  if (y.num_elements() == 0) return;
  const int64_t width = y.dim(1);
  const bool vectors = width % 8 == 0 && aligned16(rows.raw()) && aligned16(y.raw());
  const auto run = [&]<class T>(T* target) {
    const auto kernel = vectors ? combine_kernel<T, true> : combine_kernel<T, false>;
    // Few tokens do not fill the device, and are over sooner in parts.
    const int64_t parts = ctx.starts_early ? ceil_div<int64_t>(width, (vectors ? 8 : 1) * kRowThreads) : 1;
    launch_early(ctx, kernel, dim3(grid_size(y.dim(0)), short_grid_size(parts)), kRowThreads, 0, rows.data<T>(),
                 plan.row_of.data<int32_t>(), target, width, static_cast<int>(plan.row_of.dim(1)), args.accumulate);
  };
  if (y.dtype() == DType::kBF16) {
    run(y.data<__nv_bfloat16>());
  } else {
    run(y.data<float>());
  }
}

void moe_dispatch_weights(Context& ctx, const MoeDispatchWeights& args) {
  const Tensor weights = args.weights, row_weight = args.row_weight;
  const MoePlan& plan = args.plan;

  if (weights.num_elements() == 0) return;
  launch_early(ctx, dispatch_weights_kernel, weight_blocks(weights), kThreads, 0, weights.data<float>(),
               row_part(plan, row_weight), row_weight.data<float>(), weights.num_elements());
}

void moe_combine_weights(Context& ctx, const MoeCombineWeights& args) {
  const Tensor row_weight = args.row_weight, weights = args.weights;
  const MoePlan& plan = args.plan;

  if (weights.num_elements() == 0) return;
  combine_weights_kernel<<<weight_blocks(weights), kThreads, 0, ctx.stream>>>(
      row_weight.data<float>(), plan.row_of.data<int32_t>(), weights.data<float>(), weights.num_elements());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
