// Embedding look-up: T rows of D values copied from a table; memory-bound.
//
// Backward: tokens are sorted by id, stably, so that the tokens of an id are one run in the order they came in, and cut
// into pieces of equally many. A block adds up the runs of a piece row after row; a run that goes on beyond it leaves a
// partial sum, and a second kernel adds those in the order of the pieces. So the order of additions is the tokens', and
// a token that is most of the text takes little longer than others.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/kernels/experts/sort_workspace.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieceTokens = kEmbeddingPieceTokens;

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const int32_t* ids, const T* table, T* y, int64_t num_tokens, int64_t vocab_size, int64_t width,
                   bool vector) {
  begin_behind_work_before();
  const int64_t token = Group::row();
  if (token >= num_tokens) return;
  const int64_t id = ids[token];
  const bool known = id >= 0 && id < vocab_size;
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8];
    if (known) {
      load8(table + id * width, i, width, vector, values);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = __int_as_float(0x7FC00000);
    }
    store8(y + token * width, i, width, vector, values);
  }
}

__global__ void __launch_bounds__(kThreads) number_kernel(int32_t* tokens, int64_t num_tokens) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < num_tokens) tokens[i] = static_cast<int32_t>(i);
}

__device__ inline void add_to_row(float* row, int64_t column, int64_t width, bool vector, const float (&values)[8]) {
  float totals[8];
  load8(row, column, width, vector, totals);
#pragma unroll
  for (int j = 0; j < 8; ++j) totals[j] += values[j];
  store8(row, column, width, vector, totals);
}

// A run of equal ids within a piece, and whether the tokens before and behind the piece are of the same id.
struct Run {
  int begin, end;  // in the piece
  bool goes_on, came_from_before;
};

// Where the sum of a run that leaves its piece is: pieces have two such places, for what came from before (or fills
// the piece) and for what begins there.
__device__ inline int64_t partial_row(int64_t piece, bool came_from_before) {
  return 2 * piece + (came_from_before ? 0 : 1);
}

// Block x works on piece x of the sorted tokens; block y says which columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_pieces_kernel(const int32_t* sorted_ids, const int32_t* sorted_tokens, const T* dy, float* dtable,
                      float* partials, int64_t num_tokens, int64_t vocab_size, int64_t width, bool vector) {
  __shared__ int32_t ids[kPieceTokens], tokens[kPieceTokens];
  const int64_t piece = blockIdx.x, begin = piece * kPieceTokens;
  const int size = static_cast<int>(min(static_cast<int64_t>(kPieceTokens), num_tokens - begin));
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
    ids[i] = sorted_ids[begin + i];
    tokens[i] = sorted_tokens[begin + i];
  }
  __syncthreads();
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * 8;
  if (column >= width) return;
  const bool came_from_before = begin > 0 && sorted_ids[begin - 1] == ids[0];
  const bool goes_on = begin + size < num_tokens && sorted_ids[begin + size] == ids[size - 1];
  constexpr int kAhead = 4;  // rows under way at once
  for (int i = 0; i < size;) {
    const int32_t id = ids[i];
    Run run{i, i, false, i == 0 && came_from_before};
    float totals[8] = {};
    while (run.end < size && ids[run.end] == id) {
      float rows[kAhead][8] = {};
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int at = run.end + ahead;
        if (at < size && ids[at] == id) load8(dy + tokens[at] * width, column, width, vector, rows[ahead]);
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        if (run.end >= size || ids[run.end] != id) break;
        ++run.end;
#pragma unroll
        for (int j = 0; j < 8; ++j) totals[j] += rows[ahead][j];
      }
    }
    i = run.end;
    run.goes_on = run.end == size && goes_on;
    if (run.goes_on || run.came_from_before) {
      store8(partials + partial_row(piece, run.came_from_before) * width, column, width, vector, totals);
    } else if (id >= 0 && id < vocab_size) {
      add_to_row(dtable + id * width, column, width, vector, totals);
    }
  }
}

// Block x works if a run that goes on begins in piece x: it adds up the run's sums.
__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const int32_t* sorted_ids, const float* partials, float* dtable, int64_t num_tokens,
                        int64_t vocab_size, int64_t width, bool vector) {
  const int64_t piece = blockIdx.x, begin = piece * kPieceTokens, end = begin + kPieceTokens;
  if (end >= num_tokens) return;
  const int32_t id = sorted_ids[end];
  if (sorted_ids[end - 1] != id || id < 0 || id >= vocab_size) return;
  if (begin > 0 && sorted_ids[begin] == id && sorted_ids[begin - 1] == id) return;  // it began before
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * 8;
  if (column >= width) return;
  int64_t first_other = end, last = num_tokens;  // the first token behind the run is among these
  while (first_other < last) {
    const int64_t middle = (first_other + last) / 2;
    if (sorted_ids[middle] == id) {
      first_other = middle + 1;
    } else {
      last = middle;
    }
  }
  const int64_t end_piece = ceil_div(first_other, int64_t{kPieceTokens});
  float totals[8];
  load8(partials + partial_row(piece, false) * width, column, width, vector, totals);
#pragma unroll 4
  for (int64_t other = piece + 1; other < end_piece; ++other) {
    float values[8];
    load8(partials + partial_row(other, true) * width, column, width, vector, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) totals[j] += values[j];
  }
  add_to_row(dtable + id * width, column, width, vector, totals);
}

}  // namespace

void embedding_forward(Context& ctx, const EmbeddingForward& args) {
  const Tensor ids = args.ids, table = args.table, y = args.y;

  const int64_t num_tokens = ids.dim(0), width = table.dim(1);
  if (y.num_elements() == 0) return;
  dispatch_act(y.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_tokens, width, [&](auto group, unsigned grid) {
      launch_early(ctx, forward_kernel<decltype(group), T>, grid, kRowThreads, 0, ids.data<int32_t>(), table.data<T>(),
                   y.data<T>(), num_tokens, table.dim(0), width, can_vectorise(width, table, y));
    });
  });
}

int64_t sort_workspace(int64_t num_keys) {
  size_t bytes = 0;
  NMOE_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const int32_t*>(nullptr),
                                                  static_cast<int32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                                                  static_cast<int32_t*>(nullptr), static_cast<int>(num_keys), 0, 32));
  return static_cast<int64_t>(bytes);
}

void embedding_backward(Context& ctx, const EmbeddingBackward& args, const EmbeddingBackwardPlan& plan) {
  const Tensor ids = args.ids, dy = args.dy, dtable = args.dtable;

  const int64_t num_tokens = ids.dim(0), width = dtable.dim(1);
  if (num_tokens == 0 || width == 0) return;
  const auto& [tokens, sorted_ids, sorted_tokens, storage, partials] = plan;
  number_kernel<<<grid_size(ceil_div(num_tokens, kThreads)), kThreads, 0, ctx.stream>>>(tokens.data<int32_t>(),
                                                                                        num_tokens);
  NMOE_CUDA_CHECK(cudaGetLastError());
  // All bits of the ids are sorted by, so that those outside of the vocabulary form runs of their own too.
  auto num_bytes = static_cast<size_t>(storage.num_bytes());
  NMOE_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      storage.raw(), num_bytes, ids.data<int32_t>(), sorted_ids.data<int32_t>(), tokens.data<int32_t>(),
      sorted_tokens.data<int32_t>(), static_cast<int>(num_tokens), 0, 32, ctx.stream));
  dispatch_act(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    const int64_t num_chunks = ceil_div(width, int64_t{8}), num_pieces = partials.dim(0) / 2;
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kThreads, ceil_div(num_chunks, int64_t{kWarp}) * kWarp));
    const dim3 grid(grid_size(num_pieces), short_grid_size(ceil_div(num_chunks, static_cast<int64_t>(threads))));
    const bool vector = can_vectorise(width, dy, dtable, partials);
    sum_pieces_kernel<T><<<grid, threads, 0, ctx.stream>>>(sorted_ids.data<int32_t>(), sorted_tokens.data<int32_t>(),
                                                           dy.data<T>(), dtable.data<float>(), partials.data<float>(),
                                                           num_tokens, dtable.dim(0), width, vector);
    NMOE_CUDA_CHECK(cudaGetLastError());
    sum_partials_kernel<<<grid, threads, 0, ctx.stream>>>(sorted_ids.data<int32_t>(), partials.data<float>(),
                                                          dtable.data<float>(), num_tokens, dtable.dim(0), width,
                                                          vector);
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
