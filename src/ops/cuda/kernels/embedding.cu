// Embedding look-up: T rows of D values copied from a table; memory-bound.
//
// Backward: tokens are sorted by id, stably, so that the tokens of an id are one run in the order they came in. A block
// adds up a run, row after row, on top of what the table's row holds: the order of additions is the tokens'. The
// longest run bounds the time; the sort itself takes microseconds.
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/scratch.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = kThreads * 8;  // of a block of the backward

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(const int32_t* ids, const T* table, T* y, int64_t num_tokens, int64_t vocab_size, int64_t width,
                   bool vector) {
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

// Block x works if a run of equal ids begins at x; block y says which columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const int32_t* sorted_ids, const int32_t* sorted_tokens, const T* dy, float* dtable,
                    int64_t num_tokens, int64_t vocab_size, int64_t width, bool vector) {
  const int64_t begin = blockIdx.x;
  const int32_t id = sorted_ids[begin];
  if ((begin > 0 && sorted_ids[begin - 1] == id) || id < 0 || id >= vocab_size) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kColumns + static_cast<int64_t>(threadIdx.x) * 8;
  if (column >= width) return;
  float* row = dtable + id * width;
  float totals[8];
  load8(row, column, width, vector, totals);
  for (int64_t i = begin; i < num_tokens && sorted_ids[i] == id; ++i) {
    float gradients[8];
    load8(dy + sorted_tokens[i] * width, column, width, vector, gradients);
#pragma unroll
    for (int j = 0; j < 8; ++j) totals[j] += gradients[j];
  }
  store8(row, column, width, vector, totals);
}

void check_shapes(Tensor ids, Tensor table, Tensor rows) {
  NMOE_CHECK(rows.dim(0) == ids.dim(0) && rows.dim(1) == table.dim(1), "embedding of ids {} in a table {}, rows {}",
             ids.shape(), table.shape(), rows.shape());
}

}  // namespace

void embedding_forward(Context& ctx, const EmbeddingForward& args) {
  const Tensor ids = args.ids, table = args.table, y = args.y;

  check_shapes(ids, table, y);
  const int64_t num_tokens = ids.dim(0), width = table.dim(1);
  if (ctx.counting() || y.num_elements() == 0) return;
  dispatch_act(y.dtype(), [&](auto element) {
    using T = decltype(element);
    dispatch_rows(num_tokens, width, [&](auto group, unsigned grid) {
      forward_kernel<decltype(group), T><<<grid, kRowThreads, 0, ctx.stream>>>(ids.data<int32_t>(), table.data<T>(),
                                                                               y.data<T>(), num_tokens, table.dim(0),
                                                                               width, can_vectorise(width, table, y));
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void embedding_backward(Context& ctx, const EmbeddingBackward& args) {
  const Tensor ids = args.ids, dy = args.dy, dtable = args.dtable;

  check_shapes(ids, dtable, dy);
  const int64_t num_tokens = ids.dim(0), width = dtable.dim(1);
  if (num_tokens == 0 || width == 0) return;
  ArenaScope scratch(ctx.scratch);
  // All bits of the ids are sorted by, so that those outside of the vocabulary form runs of their own too.
  const auto sort = [&](const EmbeddingBackwardScratch& s, void* storage, size_t& num_bytes) {
    NMOE_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        storage, num_bytes, ids.data<int32_t>(), static_cast<int32_t*>(s.sorted_ids.raw()),
        static_cast<const int32_t*>(s.tokens.raw()), static_cast<int32_t*>(s.sorted_tokens.raw()),
        static_cast<int>(num_tokens), 0, 32, ctx.stream));
  };
  size_t num_bytes = 0;
  sort({}, nullptr, num_bytes);  // says how much it needs
  const EmbeddingBackwardScratch claimed = claim(scratch, args, static_cast<int64_t>(num_bytes));
  const auto& [tokens, sorted_ids, sorted_tokens, storage] = claimed;
  if (ctx.counting()) return;
  number_kernel<<<grid_size(ceil_div(num_tokens, kThreads)), kThreads, 0, ctx.stream>>>(tokens.data<int32_t>(),
                                                                                        num_tokens);
  NMOE_CUDA_CHECK(cudaGetLastError());
  sort(claimed, storage.raw(), num_bytes);
  dispatch_act(dy.dtype(), [&](auto element) {
    using T = decltype(element);
    const dim3 grid(grid_size(num_tokens), short_grid_size(ceil_div(width, kColumns)));
    backward_kernel<T><<<grid, kThreads, 0, ctx.stream>>>(sorted_ids.data<int32_t>(), sorted_tokens.data<int32_t>(),
                                                          dy.data<T>(), dtable.data<float>(), num_tokens, dtable.dim(0),
                                                          width, can_vectorise(width, dy, dtable));
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
