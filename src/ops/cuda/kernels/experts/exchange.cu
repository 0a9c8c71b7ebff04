// Rows to the experts of other ranks and back (contracts/exchange.h), by plain stores into their memory.
//
// The plan is a stable partition of tokens by rank in two kernels: blocks count the tokens of their chunk that go to
// each rank, then each places its own behind those of the chunks before it.
//
// Sending and returning are bound by NVLink, or, with few blocks, by how many loads these have under way: a row's way
// is a load, then a store that nobody waits for. So blocks are as large as can be, and a warp takes some neighbouring
// rows at a time and loads several units of 16 bytes a lane before it stores the first: their rows follow one another
// where they come from or where they go to, and are written as whole 128-byte packets, which is what the link carries
// best; so is what belongs to their choices. Rows of codes go in two kernels: values, then scales, few bytes a row, of
// which a warp takes more rows. Collecting is bound by this device's memory.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/peer_memory.cuh"
#include "ops/cuda/primitives/row_part.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kPlanThreads = kExchangeChunkTokens;
constexpr int kRowThreads = 1024;  // of a block whose warps move rows to other ranks
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr int kCollectThreads = 512;  // of a block whose warps sum a token's rows each
constexpr int kCollectWarps = kCollectThreads / kWarp;
static_assert(kPlanThreads == kWarp * kWarp && kMaxPeers <= kPlanThreads);

struct Placement {
  const int32_t* place;  // [E]: an expert's rank times num_slots, plus its slot
  int num_slots;
  int num_ranks;

  __device__ int rank(int expert) const { return place[expert] / num_slots; }
  __device__ int slot(int expert) const { return place[expert] % num_slots; }
};

// Whether one of a token's experts is on `rank`.
__device__ bool goes_to(const int32_t* experts, int top_k, const Placement& placement, int rank) {
  bool goes = false;
  for (int k = 0; k < top_k; ++k) goes |= placement.rank(experts[k]) == rank;
  return goes;
}

// chunk_sent[chunk][rank] = tokens of the chunk that go to a rank; loads [E] += and, of ranks, copies [W] += (either
// may be null). One block a chunk of kPlanThreads tokens, one thread a token.
__global__ void __launch_bounds__(kPlanThreads)
    count_sent_kernel(const int32_t* top_idx, Placement placement, int32_t* chunk_sent, int32_t* loads, int32_t* copies,
                      int64_t num_tokens, int top_k, int num_experts) {
  extern __shared__ int32_t chunk_loads[];
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kPlanThreads) chunk_loads[e] = 0;
  __syncthreads();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kPlanThreads + threadIdx.x;
  const bool is_there = token < num_tokens;
  const int32_t* experts = top_idx + token * top_k;
  for (int k = 0; is_there && k < top_k; ++k) {
    if (experts[k] < 0 || experts[k] >= num_experts) __trap();
    atomicAdd(&chunk_loads[experts[k]], 1);
  }
  for (int rank = 0; rank < placement.num_ranks; ++rank) {
    const int sent = __syncthreads_count(is_there && goes_to(experts, top_k, placement, rank));
    if (threadIdx.x == 0) chunk_sent[static_cast<int64_t>(blockIdx.x) * placement.num_ranks + rank] = sent;
  }
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kPlanThreads) {
    if (chunk_loads[e] == 0) continue;
    if (loads != nullptr) atomicAdd(&loads[e], chunk_loads[e]);
    if (copies != nullptr) atomicAdd(&copies[placement.rank(e)], chunk_loads[e]);
  }
}

// send_row, num_sent =; all_sent [W] += num_sent (may be null). Blocks and threads as above; with no tokens at all, one
// block.
__global__ void __launch_bounds__(kPlanThreads)
    place_sent_kernel(const int32_t* top_idx, Placement placement, const int32_t* chunk_sent, int32_t* send_row,
                      int32_t* num_sent, int32_t* all_sent, int64_t num_tokens, int top_k) {
  __shared__ int32_t before[kMaxPeers];  // tokens of earlier chunks that go to a rank
  __shared__ int32_t warp_sent[kWarp];
  const int num_ranks = placement.num_ranks, thread = static_cast<int>(threadIdx.x);
  if (thread < num_ranks) {
    int sum = 0;
    for (int64_t chunk = 0; chunk < blockIdx.x; ++chunk) sum += chunk_sent[chunk * num_ranks + thread];
    before[thread] = sum;
    if (blockIdx.x == gridDim.x - 1) {
      const int all = num_tokens == 0 ? 0 : sum + chunk_sent[static_cast<int64_t>(blockIdx.x) * num_ranks + thread];
      num_sent[thread] = all;
      if (all_sent != nullptr) all_sent[thread] += all;
    }
  }
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kPlanThreads + thread;
  const bool is_there = token < num_tokens;
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const bool goes = is_there && goes_to(top_idx + token * top_k, top_k, placement, rank);
    const unsigned going = __ballot_sync(kAllLanes, goes);
    __syncthreads();  // the last round has read warp_sent, and `before` is written
    if (lane == 0) warp_sent[warp] = __popc(going);
    __syncthreads();
    int row = before[rank] + __popc(going & ((1U << lane) - 1));
    for (int w = 0; w < warp; ++w) row += warp_sent[w];
    if (is_there) send_row[token * num_ranks + rank] = goes ? row : -1;
  }
}

struct Choices {
  const int32_t* top_idx;  // [T, K]; null: not sent
  const float* weights;
  PeerPointers<int32_t> slots;
  PeerPointers<float> inbox_weights;
  PeerPointers<int32_t> counts;
  PeerPointers<int32_t> tokens;
  bool with_tokens;
  const int32_t* num_sent;
  Placement placement;
  int top_k;
};

// Which ranks something is sent to.
struct EveryRank {
  __device__ bool has(int) const { return true; }
  __device__ bool is_empty(int) const { return false; }
};
struct LoadedRanks {
  const int32_t* loads;  // [W]
  int64_t room;

  __device__ bool has(int rank) const { return loads[rank] > room; }
  __device__ bool is_empty(int num_ranks) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (has(rank)) return false;
    }
    return true;
  }
};

// What belongs to the choices of the tokens [first, first + count), for the ranks that these go to.
template <class Ranks>
__device__ void send_choices(const Choices& choices, const Ranks& to, const int32_t* send_row, int64_t first, int count,
                             int64_t part, int num_ranks) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, top_k = choices.top_k;
  const int32_t* const rows = send_row + first * num_ranks;
  for (int i = lane; i < count * top_k; i += kWarp) {
    const int token = i / top_k, k = i % top_k;
    const int expert = choices.top_idx[first * top_k + i];
    const float weight = choices.weights[first * top_k + i];
    const int expert_rank = choices.placement.rank(expert), slot = choices.placement.slot(expert);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const int32_t row = rows[token * num_ranks + rank];
      if (row < 0 || !to.has(rank)) continue;
      const int64_t target = (part + row) * top_k + k;
      choices.slots.at[rank][target] = expert_rank == rank ? slot : -1;
      choices.inbox_weights.at[rank][target] = weight;
    }
  }
  for (int i = lane; choices.with_tokens && i < count * num_ranks; i += kWarp) {
    if (rows[i] >= 0 && to.has(i % num_ranks))
      choices.tokens.at[i % num_ranks][part + rows[i]] = static_cast<int32_t>(first + i / num_ranks);
  }
}

// Unit: the widest type a row is a whole number of. A warp takes `group` tokens at a time.
template <class Unit, class Ranks>
__global__ void __launch_bounds__(kRowThreads)
    send_kernel(const Unit* x, const int32_t* send_row, PeerPointers<Unit> inbox, Choices choices, Ranks to,
                int64_t num_tokens, int width, int64_t part, int index, int num_ranks, int group) {
  constexpr int kAhead = 4;  // units that a lane loads before it stores them
  if (to.is_empty(num_ranks)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (choices.top_idx != nullptr && blockIdx.x == 0 && threadIdx.x < static_cast<unsigned>(num_ranks)) {
    choices.counts.at[threadIdx.x][index] = choices.num_sent[threadIdx.x];
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRowWarps * group;
  for (int64_t first = warp * group; first < num_tokens; first += stride) {
    const int count = static_cast<int>(min(static_cast<int64_t>(group), num_tokens - first));
    const int num_units = count * width;
    const Unit* const source = x + first * width;
    const int32_t* const rows = send_row + first * num_ranks;
    for (int begin = lane; begin < num_units; begin += kAhead * kWarp) {
      Unit values[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = begin + j * kWarp;
        if (i < num_units) values[j] = source[i];
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = begin + j * kWarp;
        if (i >= num_units) continue;
        const int token = i / width, column = i % width;
        for (int step = 1; step <= num_ranks; ++step) {
          const int rank =
              index + step < num_ranks ? index + step : index + step - num_ranks;  // not all to one at once
          const int32_t row = rows[token * num_ranks + rank];
          if (row >= 0 && to.has(rank)) inbox.at[rank][(part + row) * width + column] = values[j];
        }
      }
    }
    if (choices.top_idx != nullptr) send_choices(choices, to, send_row, first, count, part, num_ranks);
  }
}

struct ReturnedWeights {
  const float* row_weight;  // [R]; null: not returned
  PeerPointers<float> at_home;
};

// Whether a rank's own tokens stay with it (OwnRows): what came has room.
__device__ bool own_stay(const int32_t* all_rows, int64_t capacity) {
  return all_rows == nullptr || *all_rows <= capacity;
}

// What received tokens get back.
template <class T>
struct ReturnedRows {
  const T* rows;          // [R, D]
  RowPart part;           // by the row_of [W * M, K] of received tokens
  const int32_t* counts;  // [W]
  const int32_t* all_rows;
  PeerPointers<T> at_home;
  ReturnedWeights weights;
  int64_t max_tokens;
  int width, index, num_ranks, top_k;

  // To how many ranks something returns: to all from the next one on, to this one last.
  __device__ int num_homes() const { return num_ranks - (own_stay(all_rows, part.capacity) ? 1 : 0); }
};

template <class T>
__device__ void return_weights(const ReturnedRows<T>& args, int rank, int64_t first, int count) {
  if (args.weights.row_weight == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t copies = (rank * args.max_tokens + first) * args.top_k;
  float* const target = args.weights.at_home.at[rank] + (args.index * args.max_tokens + first) * args.top_k;
  for (int i = lane; i < count * args.top_k; i += kWarp) {
    const int64_t row = args.part.place(copies + i);
    if (row >= 0) {
      target[i] = args.weights.row_weight[row];
    } else if (args.part.first == 0) {
      target[i] = 0.0F;
    }
  }
}

// Eight values as they lie in memory, aligned to 16 bytes.
template <class T>
struct alignas(16) Eight {
  T values[8];
};

// For the first rows. A warp takes `group` received tokens at a time, which have a lane for each of their choices at
// least. Its lanes have kAhead eights of the sum each, and loads of two copies under way for each: most tokens have no
// more on a rank.
template <class T>
__global__ void __launch_bounds__(kRowThreads) return_kernel(ReturnedRows<T> args, int group) {
  constexpr int kAhead = sizeof(T) == 2 ? 2 : 1;
  constexpr int kCopies = 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_of_warp = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / kWarp) * group;
  const int stride = static_cast<int>(gridDim.x) * kRowWarps * group;
  const int eights = args.width / 8, top_k = args.top_k;
  const unsigned choices = top_k == kWarp ? kAllLanes : (1U << top_k) - 1;
  const int num_homes = args.num_homes();
  for (int step = 1; step <= num_homes; ++step) {
    const int rank = (args.index + step) % args.num_ranks;  // not all to the same one at once
    for (int first = first_of_warp; first < args.counts[rank]; first += stride) {
      const int count = min(group, args.counts[rank] - first);
      const int64_t copies = (rank * args.max_tokens + first) * top_k;
      const int copy = lane < count * top_k ? static_cast<int>(args.part.place(copies + lane)) : -1;
      const unsigned here = __ballot_sync(kAllLanes, copy >= 0);
      T* const target = args.at_home.at[rank] + (args.index * args.max_tokens + first) * args.width;
      for (int begin = lane; begin - lane < count * eights; begin += kAhead * kWarp) {
        float sums[kAhead][8] = {};
        unsigned left[kAhead];              // a token's copies that are to be added
        int token[kAhead], column[kAhead];  // of an eight: where its choices begin among the lanes, its first element
        unsigned any_left = 0;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          const int i = begin + j * kWarp;
          token[j] = i / eights * top_k;
          column[j] = 8 * (i % eights);
          left[j] = i < count * eights ? here >> token[j] & choices : 0;
          any_left |= left[j];
        }
        while (__any_sync(kAllLanes, any_left != 0)) {
          Eight<T> values[kAhead][kCopies] = {};  // where there is no copy, nothing is added
          any_left = 0;
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
#pragma unroll
            for (int c = 0; c < kCopies; ++c) {
              const int row = __shfl_sync(kAllLanes, copy, (token[j] + __ffs(left[j]) - 1) & (kWarp - 1));
              if (left[j] != 0) {
                values[j][c] =
                    *reinterpret_cast<const Eight<T>*>(args.rows + static_cast<int64_t>(row) * args.width + column[j]);
              }
              left[j] &= left[j] - 1;
            }
            any_left |= left[j];
          }
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
#pragma unroll
            for (int c = 0; c < kCopies; ++c) {
#pragma unroll
              for (int v = 0; v < 8; ++v) sums[j][v] += to_float(values[j][c].values[v]);
            }
          }
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          const int i = begin + j * kWarp;
          if (i < count * eights) store8(target + 8 * i, sums[j]);
        }
      }
      return_weights(args, rank, first, count);
    }
  }
}

// The same for any part of the rows, of any width, and any number of choices. One warp a received token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) return_any_kernel(ReturnedRows<T> args) {
  const RowPart& part = args.part;
  if (part.is_empty()) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  const int num_homes = args.num_homes();
  for (int step = 1; step <= num_homes; ++step) {
    const int rank = (args.index + step) % args.num_ranks;
    for (int64_t token = warp; token < args.counts[rank]; token += static_cast<int64_t>(gridDim.x) * kRowWarps) {
      const int64_t copies = (rank * args.max_tokens + token) * args.top_k;
      if (part.first > 0) {
        bool is_there = false;
        for (int k = 0; k < args.top_k; ++k) is_there |= part.place(copies + k) >= 0;
        if (!is_there) continue;
      }
      T* const target = args.at_home.at[rank] + (args.index * args.max_tokens + token) * args.width;
      for (int i = lane; i < args.width; i += kWarp) {
        float sum = part.first > 0 ? to_float(target[i]) : 0.0F;
        for (int k = 0; k < args.top_k; ++k) {
          const int64_t row = part.place(copies + k);
          if (row >= 0) sum += to_float(args.rows[row * args.width + i]);
        }
        target[i] = from_float<T>(sum);
      }
      return_weights(args, rank, token, 1);
    }
  }
}

struct ReturnedCopies {
  const int32_t* row_of;  // [W, M, K]
  const int32_t* tokens;  // [W, M]
  const int32_t* counts;
  const float* row_weight;  // [W, C]; null: not returned
  PeerPointers<float> weights;
};

// Unit: the widest type a row is a whole number of. One warp a received token.
template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    return_copies_kernel(const Unit* rows, ReturnedCopies copies, PeerPointers<Unit> at_home, int64_t part_rows,
                         int64_t max_tokens, int64_t width, int index, int num_ranks, int top_k) {
  constexpr int kAhead = 4;  // units that a lane loads before it stores them
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  for (int step = 0; step < num_ranks; ++step) {
    const int rank = (index + step) % num_ranks;  // not all to the same one at once
    for (int64_t token = warp; token < copies.counts[rank]; token += static_cast<int64_t>(gridDim.x) * kRowWarps) {
      const int64_t received = rank * max_tokens + token;
      const int64_t home = static_cast<int64_t>(copies.tokens[received]) * top_k;
      for (int k = 0; k < top_k; ++k) {
        const int32_t row_in_part = copies.row_of[received * top_k + k];
        if (row_in_part < 0) continue;
        const int64_t row = rank * part_rows + row_in_part;
        const Unit* const source = rows + row * width;
        Unit* const target = at_home.at[rank] + (home + k) * width;
        for (int64_t begin = lane; begin < width; begin += kAhead * kWarp) {
          Unit values[kAhead];
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            if (begin + j * kWarp < width) values[j] = source[begin + j * kWarp];
          }
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            if (begin + j * kWarp < width) target[begin + j * kWarp] = values[j];
          }
        }
        if (copies.row_weight != nullptr && lane == 0) copies.weights.at[rank][home + k] = copies.row_weight[row];
      }
    }
  }
}

struct CollectedWeights {
  const int32_t* top_idx;
  const float* returned;
  float* weights;  // null: not collected
  Placement placement;
};

template <class T>
struct OwnPart {
  const T* rows;            // [capacity, D]
  const float* row_weight;  // null: not collected
  const int32_t* row_of;    // [M, K]
  const int32_t* all_rows;
  int64_t capacity;
  int rank, top_k;
};

// One warp a token. kVectors: eight values at a time, of tokens that have a lane for each of their choices at least.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kCollectThreads)
    collect_kernel(OwnPart<T> own, const T* returned, const int32_t* send_row, T* y, CollectedWeights collected,
                   int64_t num_tokens, int64_t max_tokens, int64_t width, int num_ranks, bool accumulate) {
  constexpr int kCopies = 4;  // rows that a lane loads before it adds them
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kCollectWarps + threadIdx.x / kWarp;
  if (token >= num_tokens) return;
  const int32_t* const rows = send_row + token * num_ranks;
  const int own_rank = own_stay(own.all_rows, own.capacity) ? own.rank : -1;
  const int32_t* const own_copies =
      own_rank >= 0 && rows[own_rank] >= 0 ? own.row_of + static_cast<int64_t>(rows[own_rank]) * own.top_k : nullptr;
  T* const target = y + token * width;
  if constexpr (kVectors) {
    const int copy = own_copies != nullptr && lane < own.top_k ? own_copies[lane] : -1;
    const unsigned here = __ballot_sync(kAllLanes, copy >= 0);
    for (int64_t begin = 0; begin < width; begin += 8 * kWarp) {
      const int64_t i = begin + 8 * lane;
      const bool is_there = i < width;
      float sums[8] = {}, own_sums[8] = {};
      for (unsigned left = here; left != 0;) {
        Eight<T> values[kCopies] = {};  // where there is no copy, nothing is added
#pragma unroll
        for (int c = 0; c < kCopies; ++c) {
          const int64_t row = __shfl_sync(kAllLanes, copy, (__ffs(left) - 1) & (kWarp - 1));
          if (left != 0 && is_there) values[c] = *reinterpret_cast<const Eight<T>*>(own.rows + row * width + i);
          left &= left - 1;
        }
#pragma unroll
        for (int c = 0; c < kCopies; ++c) {
#pragma unroll
          for (int j = 0; j < 8; ++j) own_sums[j] += to_float(values[c].values[j]);
        }
      }
      if (!is_there) continue;
      if (accumulate) load8(target + i, sums);
      for (int rank = 0; rank < num_ranks; ++rank) {
        if (rows[rank] < 0) continue;
        if (rank == own_rank) {
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[j] += own_sums[j];
          continue;
        }
        float values[8];
        load8(returned + (rank * max_tokens + rows[rank]) * width + i, values);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[j] += values[j];
      }
      store8(target + i, sums);
    }
  } else {
    for (int64_t i = lane; i < width; i += kWarp) {
      float sum = accumulate ? to_float(target[i]) : 0.0F;
      for (int rank = 0; rank < num_ranks; ++rank) {
        if (rows[rank] < 0) continue;
        if (rank == own_rank) {
          float own_sum = 0.0F;
          for (int k = 0; k < own.top_k; ++k) {
            if (own_copies[k] >= 0) own_sum += to_float(own.rows[own_copies[k] * width + i]);
          }
          sum += own_sum;
        } else {
          sum += to_float(returned[(rank * max_tokens + rows[rank]) * width + i]);
        }
      }
      target[i] = from_float<T>(sum);
    }
  }
  if (collected.weights == nullptr) return;
  for (int k = lane; k < own.top_k; k += kWarp) {
    const int64_t copy = token * own.top_k + k;
    const int rank = collected.placement.rank(collected.top_idx[copy]);
    collected.weights[copy] = rank == own_rank ? own.row_weight[own_copies[k]]
                                               : collected.returned[(rank * max_tokens + rows[rank]) * own.top_k + k];
  }
}

Placement placement_of(const ExchangePlan& plan) {
  return {.place = plan.placement.data<int32_t>(),
          .num_slots = static_cast<int>(plan.num_slots),
          .num_ranks = static_cast<int>(plan.num_sent.dim(0))};
}

int64_t bytes_of(DType dtype, int64_t num_elements) { return num_elements * static_cast<int64_t>(dtype_bytes(dtype)); }

// Calls run(Unit{}), Unit being the widest type that rows of so many bytes, which begin where `a` and `b` do, consist
// of.
template <class Run>
void with_widest_unit(int64_t row_bytes, const Tensor& a, const Tensor& b, const Run& run) {
  if (row_bytes % 16 == 0 && aligned16(a.raw()) && aligned16(b.raw())) {
    run(uint4{});
  } else if (row_bytes % 4 == 0) {
    run(uint32_t{});
  } else if (row_bytes % 2 == 0) {
    run(uint16_t{});
  } else {
    run(uint8_t{});
  }
}

// Blocks that move `num_rows` rows, each of which has a multiprocessor to itself; of them at most `max_blocks`, if that
// is not 0.
unsigned row_blocks(const Context& ctx, int64_t num_rows, int64_t max_blocks) {
  const int64_t most = max_blocks > 0 ? std::min<int64_t>(max_blocks, ctx.num_sms) : ctx.num_sms;
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div<int64_t>(num_rows, kRowWarps), 1, most));
}

// Rows that a warp takes at a time: as many as have a lane for each of their choices.
int rows_at_a_time(int64_t top_k) { return static_cast<int>(std::max<int64_t>(1, kWarp / top_k)); }

}  // namespace

void build_exchange_plan(Context& ctx, const BuildExchangePlan& args, const Tensor& chunk_sent) {
  const ExchangePlan& plan = args.plan;
  const int64_t num_tokens = args.top_idx.dim(0), num_experts = plan.placement.dim(0), num_ranks = plan.num_sent.dim(0);
  const int64_t num_chunks = exchange_chunks(args);
  const int top_k = static_cast<int>(args.top_idx.dim(1));
  const Placement placement = placement_of(plan);
  int32_t* const all_sent = args.traffic.data_or_null<int32_t>();
  count_sent_kernel<<<grid_size(num_chunks), kPlanThreads, static_cast<size_t>(num_experts) * sizeof(int32_t),
                      ctx.stream>>>(
      args.top_idx.data<int32_t>(), placement, chunk_sent.data<int32_t>(), args.counts.data_or_null<int32_t>(),
      all_sent == nullptr ? nullptr : all_sent + num_ranks, num_tokens, top_k, static_cast<int>(num_experts));
  NMOE_CUDA_CHECK(cudaGetLastError());
  place_sent_kernel<<<grid_size(num_chunks), kPlanThreads, 0, ctx.stream>>>(
      args.top_idx.data<int32_t>(), placement, chunk_sent.data<int32_t>(), plan.send_row.data<int32_t>(),
      plan.num_sent.data<int32_t>(), all_sent, num_tokens, top_k);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void exchange_send(Context& ctx, const ExchangeSend& args) {
  const Peers& peers = args.peers;
  const ExchangeInbox& inbox = args.inbox;
  Choices choices{};
  if (args.top_idx.defined()) {
    choices = {.top_idx = args.top_idx.data<int32_t>(),
               .weights = args.weights.data<float>(),
               .slots = peer_pointers<int32_t>(peers, inbox.slots),
               .inbox_weights = peer_pointers<float>(peers, inbox.weights),
               .counts = peer_pointers<int32_t>(peers, inbox.counts),
               .tokens = inbox.tokens.defined() ? peer_pointers<int32_t>(peers, inbox.tokens) : PeerPointers<int32_t>{},
               .with_tokens = inbox.tokens.defined(),
               .num_sent = args.plan.num_sent.data<int32_t>(),
               .placement = placement_of(args.plan),
               .top_k = static_cast<int>(args.top_idx.dim(1))};
  }
  const auto send = [&](const Tensor& rows, const Tensor& received, const Choices& beside, int group) {
    const int64_t num_tokens = rows.dim(0), row_bytes = bytes_of(rows.dtype(), rows.dim(1));
    const auto send_to = [&]<class Unit, class Ranks>(Unit, Ranks to) {
      send_kernel<<<row_blocks(ctx, num_tokens, args.max_blocks), kRowThreads, 0, ctx.stream>>>(
          static_cast<const Unit*>(rows.raw()), args.plan.send_row.data<int32_t>(),
          peer_pointers<Unit>(peers, received), beside, to, num_tokens, static_cast<int>(row_bytes / sizeof(Unit)),
          peers.index() * inbox.slots.dim(1), static_cast<int>(peers.index()), static_cast<int>(peers.count()), group);
      NMOE_CUDA_CHECK(cudaGetLastError());
    };
    with_widest_unit(row_bytes, rows, received, [&](auto unit) {
      if (args.loads.defined()) {
        send_to(unit, LoadedRanks{args.loads.data<int32_t>(), args.room});
      } else {
        send_to(unit, EveryRank{});
      }
    });
  };
  const int group = rows_at_a_time(args.top_idx.defined() ? args.top_idx.dim(1) : kWarp / 4);
  if (!args.codes.defined()) return send(args.x, inbox.rows, choices, group);
  send(args.codes.values, inbox.codes.values, choices, group);
  send(args.codes.scales, inbox.codes.scales, Choices{}, /*group=*/kWarp);
}

void exchange_return(Context& ctx, const ExchangeReturn& args) {
  const Peers& peers = args.peers;
  const int64_t max_tokens = args.returns.rows.dim(1), width = args.rows.dim(1), top_k = args.row_of.dim(1);
  const bool with_weights = args.row_weight.defined();
  const bool vectors = can_vectorise(width, args.rows, args.returns.rows) && top_k <= kWarp && args.first_row == 0;
  const unsigned num_blocks = row_blocks(ctx, peers.count() * max_tokens, args.max_blocks);
  dispatch_act(args.rows.dtype(), [&]<class T>(T) {
    const ReturnedRows<T> returned{
        .rows = args.rows.data<T>(),
        .part = {.row_of = args.row_of.data<int32_t>(),
                 .num_rows = args.first_row > 0 ? args.num_rows.data<int32_t>() : nullptr,
                 .first = args.first_row,
                 .capacity = args.rows.dim(0)},
        .counts = args.counts.data<int32_t>(),
        .all_rows = args.all_rows.data_or_null<int32_t>(),
        .at_home = peer_pointers<T>(peers, args.returns.rows),
        .weights = {.row_weight = with_weights ? args.row_weight.data<float>() : nullptr,
                    .at_home =
                        with_weights ? peer_pointers<float>(peers, args.returns.weights) : PeerPointers<float>{}},
        .max_tokens = max_tokens,
        .width = static_cast<int>(width),
        .index = static_cast<int>(peers.index()),
        .num_ranks = static_cast<int>(peers.count()),
        .top_k = static_cast<int>(top_k)};
    if (vectors) {
      return_kernel<<<num_blocks, kRowThreads, 0, ctx.stream>>>(returned, rows_at_a_time(top_k));
    } else {
      return_any_kernel<<<num_blocks, kRowThreads, 0, ctx.stream>>>(returned);
    }
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void exchange_return_copies(Context& ctx, const ExchangeReturnCopies& args) {
  const Peers& peers = args.peers;
  const bool with_weights = args.row_weight.defined();
  const ReturnedCopies copies{
      .row_of = args.row_of.data<int32_t>(),
      .tokens = args.tokens.data<int32_t>(),
      .counts = args.counts.data<int32_t>(),
      .row_weight = with_weights ? args.row_weight.data<float>() : nullptr,
      .weights = with_weights ? peer_pointers<float>(peers, args.weights) : PeerPointers<float>{}};
  const int64_t max_tokens = args.tokens.dim(1), row_bytes = bytes_of(args.rows.dtype(), args.rows.dim(2));
  const unsigned num_blocks = row_blocks(ctx, peers.count() * max_tokens, args.max_blocks);
  with_widest_unit(row_bytes, args.rows, args.copies, [&]<class Unit>(Unit) {
    return_copies_kernel<<<num_blocks, kRowThreads, 0, ctx.stream>>>(
        static_cast<const Unit*>(args.rows.raw()), copies, peer_pointers<Unit>(peers, args.copies), args.rows.dim(1),
        max_tokens, row_bytes / static_cast<int64_t>(sizeof(Unit)), static_cast<int>(peers.index()),
        static_cast<int>(peers.count()), static_cast<int>(args.row_of.dim(2)));
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void exchange_collect(Context& ctx, const ExchangeCollect& args) {
  if (args.y.num_elements() == 0) return;
  const int64_t num_tokens = args.y.dim(0), width = args.y.dim(1);
  const bool with_weights = args.weights.defined();
  const CollectedWeights collected{.top_idx = args.top_idx.data<int32_t>(),
                                   .returned = with_weights ? args.returns.weights.data<float>() : nullptr,
                                   .weights = with_weights ? args.weights.data<float>() : nullptr,
                                   .placement = placement_of(args.plan)};
  const OwnRows& own = args.own;
  const int64_t top_k = own.row_of.dim(1);
  const bool vectors = can_vectorise(width, args.y, args.returns.rows, own.rows) && top_k <= kWarp;
  dispatch_act(args.y.dtype(), [&]<class T>(T) {
    const OwnPart<T> own_part{.rows = own.rows.data<T>(),
                              .row_weight = with_weights ? own.row_weight.data<float>() : nullptr,
                              .row_of = own.row_of.data<int32_t>(),
                              .all_rows = own.all_rows.data_or_null<int32_t>(),
                              .capacity = own.rows.dim(0),
                              .rank = static_cast<int>(own.rank),
                              .top_k = static_cast<int>(top_k)};
    const auto kernel = vectors ? collect_kernel<T, true> : collect_kernel<T, false>;
    kernel<<<grid_size(ceil_div<int64_t>(num_tokens, kCollectWarps)), kCollectThreads, 0, ctx.stream>>>(
        own_part, args.returns.rows.data<T>(), args.plan.send_row.data<int32_t>(), args.y.data<T>(), collected,
        num_tokens, args.returns.rows.dim(1), width, collected.placement.num_ranks, args.accumulate);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace nmoe::cuda
