// Where the ranks of a domain meet, and sums over them (contracts/exchange.h).
//
// The barrier is one block. Thread r tells rank r that this rank has come, by a release in that rank's memory, and
// waits until rank r has told this one. Kernels that ran before it on the stream are over, so what they wrote is
// published with the flag. Its number is counted in device memory, so that a recorded barrier is another one at every
// launch.
//
// A barrier that nobody ends is left after the missing rank's patience, counted from when its host set it last: the
// thread that gave up writes who waited for whom, and where, to host memory and raises every rank's flag to give up, at
// which all waits end, and those to come too.
//
// Sums, spreading and fetching are bound by NVLink: a rank reads its part of every other's tensor, or writes it there.
// Fetching is a kernel, not a copy of the driver's: that enqueues one only when no thread is inside a call for the
// other device, also one that waits there until its queue has room, behind a barrier that waits for this rank.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/clock.cuh"
#include "ops/cuda/primitives/ordered_sum.cuh"
#include "ops/cuda/primitives/peer_memory.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBarrierThreads = 96;
constexpr unsigned kSpinsPerLook = 256;  // at the flag to give up, which is in host memory
static_assert(kBarrierThreads >= kMaxPeers && kBarrierThreads % kWarp == 0);

struct BarrierState {
  PeerPointers<int64_t> arrivals;
  PeerPointers<int32_t> aborted;
  PeerPointers<int64_t> patience_ns;
  int64_t* count;
  int64_t* report;
  int64_t index, num_ranks;
  int64_t work, layer;
  double* waited;  // null: not measured
};

__device__ void give_up(const BarrierState& state, int64_t rank, int64_t barrier) {
  auto* const taken = reinterpret_cast<unsigned long long*>(state.report);
  state.report[1] = state.index;
  state.report[2] = rank;
  state.report[3] = barrier;
  state.report[4] = state.work;
  state.report[5] = state.layer;
  __threadfence_system();
  *reinterpret_cast<volatile unsigned long long*>(taken) = 1;
  __threadfence_system();
  for (int64_t peer = 0; peer < state.num_ranks; ++peer) store_relaxed_system(state.aborted.at[peer], 1);
}

__global__ void __launch_bounds__(kBarrierThreads) barrier_kernel(BarrierState state) {
  __shared__ int64_t barrier;
  __shared__ int gave_up;
  if (threadIdx.x == 0) {
    barrier = ++*state.count;
    gave_up = 0;
    __threadfence_system();
  }
  __syncthreads();
  const int64_t rank = threadIdx.x;
  const uint64_t begin = global_time_ns();
  if (rank < state.num_ranks) {
    store_release_system(state.arrivals.at[rank] + state.index, barrier);
    const int64_t* const arrived = state.arrivals.at[state.index] + rank;
    uint64_t patient_since = begin;
    int64_t patience = load_relaxed_system(state.patience_ns.at[rank]);
    for (unsigned spins = 1; load_acquire_system(arrived) < barrier; ++spins) {
      if (spins % kSpinsPerLook != 0) continue;
      if (load_relaxed_system(state.aborted.at[state.index]) != 0) break;
      if (const int64_t now = load_relaxed_system(state.patience_ns.at[rank]); now != patience) {
        patience = now;
        patient_since = global_time_ns();
      }
      if (static_cast<int64_t>(global_time_ns() - patient_since) > patience) {
        if (atomicExch(&gave_up, 1) == 0) give_up(state, rank, barrier);
        break;
      }
    }
  }
  if (state.waited == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0) *state.waited += static_cast<double>(global_time_ns() - begin);
}

template <class T>
void sum_part(Context& ctx, const PeerSum& args) {
  T* const target = args.sum.defined() ? args.sum.data<T>() : args.x.data<T>() + args.begin;
  ordered_sum(ctx, peer_pointers<T>(args.peers, args.x), target, args.accumulate, args.peers.count(), args.begin,
              args.end, args.max_blocks);
}

// Elements of Unit bytes.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(PeerPointers<Unit> x, int64_t index, int64_t num_ranks, int64_t begin, int64_t end) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < end; i += stride) {
    const Unit value = x.at[index][i];
    for (int64_t step = 1; step < num_ranks; ++step) x.at[(index + step) % num_ranks][i] = value;
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads) fetch_kernel(const Unit* from, Unit* to, int64_t num_units) {
  constexpr int kAhead = 4;  // units that a thread loads before it stores them
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < num_units; i += kAhead * stride) {
    Unit values[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j * stride < num_units) values[j] = from[i + j * stride];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (i + j * stride < num_units) to[i + j * stride] = values[j];
    }
  }
}

// Calls run(Unit{}) with the widest type that bytes [first, last) of tensors of `dtype` are a whole number of.
template <class Run>
void with_units(DType dtype, int64_t first, int64_t last, bool aligned, const Run& run) {
  if (first % 16 == 0 && last % 16 == 0 && aligned) {
    run(uint4{});
  } else if (dtype_bytes(dtype) % 4 == 0) {
    run(uint32_t{});
  } else if (dtype_bytes(dtype) == 2) {
    run(uint16_t{});
  } else {
    run(uint8_t{});
  }
}

unsigned unit_blocks(const Context& ctx, int64_t num_units) {
  return grid_size(std::min<int64_t>(ceil_div<int64_t>(num_units, kThreads), 4L * ctx.num_sms));
}

}  // namespace

void peer_barrier(Context& ctx, const PeerBarrier& args) {
  const Peers& peers = args.peers;
  if (peers.alone()) return;
  const Peers::Barrier& barrier = peers.barrier();
  const BarrierState state{.arrivals = peer_pointers<int64_t>(peers, barrier.arrivals),
                           .aborted = peer_pointers<int32_t>(peers, barrier.aborted),
                           .patience_ns = peer_pointers<int64_t>(peers, barrier.patience),
                           .count = barrier.count.data<int64_t>(),
                           .report = barrier.report.data<int64_t>(),
                           .index = peers.index(),
                           .num_ranks = peers.count(),
                           .work = static_cast<int64_t>(args.place.work),
                           .layer = args.place.layer,
                           .waited = args.waited.data_or_null<double>()};
  barrier_kernel<<<1, kBarrierThreads, 0, ctx.stream>>>(state);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void peer_sum(Context& ctx, const PeerSum& args) {
  if (args.begin == args.end || (args.peers.alone() && !args.sum.defined())) return;
  switch (args.x.dtype()) {
    case DType::kF32:
      return sum_part<float>(ctx, args);
    case DType::kF64:
      return sum_part<double>(ctx, args);
    case DType::kI32:
      return sum_part<int32_t>(ctx, args);
    default:
      NMOE_CHECK(false, "a sum over ranks of {}", dtype_name(args.x.dtype()));
  }
}

void peer_spread(Context& ctx, const PeerSpread& args) {
  if (args.peers.alone() || args.begin == args.end) return;
  const auto element = static_cast<int64_t>(dtype_bytes(args.x.dtype()));
  const int64_t first = args.begin * element, last = args.end * element;
  with_units(args.x.dtype(), first, last, aligned16(args.x.raw()), [&]<class Unit>(Unit) {
    const auto size = static_cast<int64_t>(sizeof(Unit));
    spread_kernel<<<unit_blocks(ctx, (last - first) / size), kThreads, 0, ctx.stream>>>(
        peer_pointers<Unit>(args.peers, args.x), args.peers.index(), args.peers.count(), first / size, last / size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void peer_fetch(Context& ctx, const PeerFetch& args) {
  const Tensor& to = args.destination;
  if (to.num_elements() == 0) return;
  const void* const from = args.peers.on(args.rank, args.x).raw();
  with_units(to.dtype(), 0, to.num_bytes(), aligned16(from) && aligned16(to.raw()), [&]<class Unit>(Unit) {
    const int64_t num_units = to.num_bytes() / static_cast<int64_t>(sizeof(Unit));
    fetch_kernel<<<unit_blocks(ctx, num_units), kThreads, 0, ctx.stream>>>(static_cast<const Unit*>(from),
                                                                           static_cast<Unit*>(to.raw()), num_units);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace nmoe::cuda
