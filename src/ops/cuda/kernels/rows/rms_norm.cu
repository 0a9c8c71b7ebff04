// RMSNorm, memory-bound. N rows of D values; with n = x rstd and g = dy (gain + offset)
//   forward   y = n (gain + offset)
//   backward  dgain += sum over rows of dy n;   dx = rstd (g - n mean(g n))
//
// Forward reads x twice, the second time from a cache for the sizes models use. Backward reads x and dy once: a block
// has a chunk of rows, a warp of it (or for wide rows all of it) a row at a time, and each thread keeps what it adds to
// dgain until the chunk is done. Those partial sums, [chunks, D], are added in the chunks' order by a second kernel.
// Chunks follow from N and D alone.
#include <algorithm>
#include <limits>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/code_rows.cuh"
#include "ops/cuda/primitives/early_launch.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/norm_sum.cuh"
#include "ops/cuda/primitives/packed.cuh"
#include "ops/cuda/primitives/row_groups.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"

namespace nmoe::cuda {
namespace {

// Where vectors begin (contracts/norm.h): `per_row` of them, each of `width` values, in rows that are `stride` apart.
template <class T>
struct Vectors {
  T* first;
  int64_t stride, width;
  unsigned per_row;

  // Of vector i, the same for all that have as many a row.
  struct Place {
    int64_t row, vector;
  };
  __device__ Place place_of(int64_t i) const {
    if (per_row == 1) return {i, 0};
    const auto index = static_cast<unsigned>(i);
    return {index / per_row, index % per_row};
  }
  __device__ T* at(const Place& place) const { return first + place.row * stride + place.vector * width; }
  __device__ T* operator[](int64_t i) const { return at(place_of(i)); }
};
template <class T>
Vectors<T> vectors_of(const Tensor& x) {
  NMOE_CHECK(x.shape().rank() == 2 || norm_vectors(x) <= std::numeric_limits<int32_t>::max(), "a norm of {}",
             x.shape());  // divided in 32 bits
  return {x.rows_data<T>(), x.stride(), x.dim(-1), static_cast<unsigned>(norm_vectors_of_row(x))};
}

// Gains as they were given and what is added to each: of no offset -0, which leaves every gain as it is, -0 as well.
struct Gains {
  const float* values;
  float offset;

  __device__ void load8(int64_t i, int64_t width, bool vector, float (&gains)[8]) const {
    cuda::load8(values, i, width, vector, gains);
#pragma unroll
    for (float& gain : gains) gain += offset;
  }
};
template <class Arguments>
Gains gains_of(const Arguments& args) {
  return {args.gain.template data<float>(), args.gain_offset == 0.0 ? -0.0F : static_cast<float>(args.gain_offset)};
}

constexpr int kGainWarps = 8;  // of a block that adds partial sums; each takes every eighth chunk

template <class Group, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(Vectors<T> inputs, Gains gain, float eps, Vectors<T> outputs, float* rstds, int64_t num_rows,
                   int64_t width, bool vector, CodeRows codes) {
  let_next_start();
  if (blockIdx.x == 0) prefetch_rows(gain.values, 1, width);
  wait_for_work_before();
  const int64_t row = Group::row();
  if (row >= num_rows) return;
  const T* x = inputs[row];
  T* y = outputs[row];
  const float squares = sum_of_squares<Group>(x, width, vector);
  const float rstd = 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
  for (int64_t i = Group::thread() * 8; i < width; i += Group::kThreads * 8) {
    float values[8], gains[8];
    load8(x, i, width, vector, values);
    gain.load8(i, width, vector, gains);
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = values[j] * rstd * gains[j];
    store8(y, i, width, vector, values);
    if (codes.values != nullptr) codes.store8<T>(row, i, values);
  }
  if (Group::thread() == 0) rstds[row] = rstd;
}

// Of backward: blocks that a multiprocessor is to have.
template <class Group, int kVectors>
constexpr int kBlocksAtOnce = kVectors > 3                                     ? 1
                              : Group::kThreads == kRowThreads&& kVectors == 1 ? 4
                                                                               : 2;

// partial[column] = the sum of `totals` over the block's row groups, in their order; all threads together. sums:
// [groups, width]. A thread has kVectors times 8 columns.
template <class Group, int kVectors>
__device__ void add_groups(const float (&totals)[kVectors][8], float* sums, float* partial, int64_t width) {
  const int own_group = static_cast<int>(threadIdx.x) / Group::kThreads;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * Group::kThreads + Group::thread()) * 8;
    if (column >= width) continue;
    float* const target = Group::kRowsPerBlock > 1 ? sums + own_group * width : partial;
    store8(target, column, width, width % 8 == 0, totals[v]);
  }
  if constexpr (Group::kRowsPerBlock == 1) return;
  __syncthreads();
  for (int64_t column = threadIdx.x; column < width; column += kRowThreads) {
    float sum = sums[column];
#pragma unroll
    for (int group = 1; group < Group::kRowsPerBlock; ++group) sum += sums[group * width + column];
    partial[column] = sum;
  }
}

// partials[chunk, column] = the sum of dy x rstd over the chunk's rows, and dx. A thread has kVectors times 8 columns
// of a row. dx and dy may be the same: a thread reads the elements that it then writes, and no other does.
template <class Group, int kVectors, bool kVector, class T>
__global__ void __launch_bounds__(kRowThreads, (kBlocksAtOnce<Group, kVectors>))
    backward_kernel(Vectors<T> inputs, Gains gain, const float* rstds, Vectors<T> dys, Vectors<T> dxs, float* partials,
                    int64_t num_rows, int64_t width, int64_t chunk_rows, bool accumulate, CodeRows codes) {
  constexpr int kStep = Group::kRowsPerBlock;
  struct Row {
    Packed8<T> x[kVectors], dy[kVectors];
    float rstd;
  };
  extern __shared__ __align__(16) float sums[];  // [groups, width], where there are several
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * chunk_rows;
  const int size = static_cast<int>(min(chunk_rows, num_rows - begin));
  const int own_row = static_cast<int>(threadIdx.x) / Group::kThreads;
  const auto column_of = [](int v) { return (v * Group::kThreads + Group::thread()) * 8; };
  const auto fetch = [&](int row, Row& fetched) {
    if (row >= size) return;
    const auto place = inputs.place_of(begin + row);
    const T *x = inputs.at(place), *dy = dys.at({place.row, place.vector});
    fetched.rstd = rstds[begin + row];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= width) continue;
      fetched.x[v] = fetch8(x, column_of(v), width, kVector);
      fetched.dy[v] = fetch8(dy, column_of(v), width, kVector);
    }
  };
  float totals[kVectors][8] = {};
  const auto work = [&](int row, const Row& fetched) {
    T* const dx = dxs.at(dxs.place_of(begin + row));
    Packed8<T> before[kVectors];
    if (accumulate) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column_of(v) < width) before[v] = fetch8(dx, column_of(v), width, kVector);
      }
    }
    const float rstd = fetched.rstd;
    float products = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= width) continue;
      float x[8], dy[8], gains[8];
      unpack8(fetched.x[v], x);
      unpack8(fetched.dy[v], dy);
      gain.load8(column_of(v), width, kVector, gains);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        totals[v][j] += dy[j] * (x[j] * rstd);
        products += dy[j] * gains[j] * x[j];
      }
    }
    const float slope = rstd * rstd * rstd * (Group::sum(products) / static_cast<float>(width));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column_of(v) >= width) continue;
      float x[8], dy[8], gains[8], result[8];
      unpack8(fetched.x[v], x);
      unpack8(fetched.dy[v], dy);
      gain.load8(column_of(v), width, kVector, gains);
#pragma unroll
      for (float& value : result) value = -0.0F;  // to which any value can be added, zeros of both signs too
      if (accumulate) unpack8(before[v], result);
#pragma unroll
      for (int j = 0; j < 8; ++j) result[j] += rstd * (dy[j] * gains[j]) - slope * x[j];
      store8(dx, column_of(v), width, kVector, result);
      if (codes.values != nullptr) codes.store8<T>(begin + row, column_of(v), result);
    }
  };
  Row ahead;
  fetch(own_row, ahead);
  for (int row = own_row; row < size; row += kStep) {
    const Row fetched = ahead;
    fetch(row + kStep, ahead);
    work(row, fetched);
  }
  add_groups<Group, kVectors>(totals, sums, partials + blockIdx.x * width, width);
}

// The same of heads of at most 128 values, dx =. A group of lanes has kHeads of them at a time, of one token, the next
// of which are on their way; a block every gridDim.x-th of those.
using HeadGroup = RowGroup<kWarp / 2>;
constexpr int kHeads = 4;
constexpr int64_t kMaxHeadSize = int64_t{8} * HeadGroup::kThreads;
template <bool kVector, class T>
__global__ void __launch_bounds__(kRowThreads, 2)
    heads_backward_kernel(Vectors<T> inputs, Gains gain, const float* rstds, Vectors<T> dys, Vectors<T> dxs,
                          float* partials, unsigned num_tasks, unsigned head_groups) {
  struct Heads {
    Packed8<T> x[kHeads], dy[kHeads];
    float rstds[kHeads];
    T* dx;
    unsigned count;
  };
  extern __shared__ __align__(16) float sums[];  // [groups, width]
  const int64_t width = inputs.width;
  const int column = HeadGroup::thread() * 8;
  const bool in_head = column < width;
  float gains[8] = {}, totals[1][8] = {};
  if (in_head) gain.load8(column, width, kVector, gains);
  const auto fetch = [&](unsigned task, Heads& heads) {
    heads.count = 0;
    if (task >= num_tasks) return;
    const unsigned token = task / head_groups, first = task % head_groups * kHeads;
    const typename Vectors<T>::Place place{token, first};
    const T *x = inputs.at(place), *dy = dys.at({token, first});
    heads.dx = dxs.at({token, first});
    heads.count = min(inputs.per_row - first, unsigned{kHeads});
    const float* const rstd = rstds + static_cast<int64_t>(token) * inputs.per_row + first;
#pragma unroll
    for (unsigned h = 0; h < kHeads; ++h) {
      if (h >= heads.count) continue;
      heads.rstds[h] = rstd[h];
      if (!in_head) continue;
      heads.x[h] = fetch8(x + h * width, column, width, kVector);
      heads.dy[h] = fetch8(dy + h * width, column, width, kVector);
    }
  };
  const unsigned step = gridDim.x * HeadGroup::kRowsPerBlock;
  const auto first_task = static_cast<unsigned>(HeadGroup::row());
  Heads ahead;
  fetch(first_task, ahead);
  for (unsigned task = first_task; task < num_tasks; task += step) {
    const Heads heads = ahead;
    fetch(task + step, ahead);
#pragma unroll
    for (unsigned h = 0; h < kHeads; ++h) {
      if (h >= heads.count) continue;  // all of the group
      const float rstd = heads.rstds[h];
      float x[8] = {}, dy[8] = {}, products = 0.0F;
      if (in_head) {
        unpack8(heads.x[h], x);
        unpack8(heads.dy[h], dy);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        totals[0][j] += dy[j] * (x[j] * rstd);
        dy[j] *= gains[j];
        products += dy[j] * x[j];
      }
      const float slope = rstd * rstd * rstd * (HeadGroup::sum(products) / static_cast<float>(width));
#pragma unroll
      for (int j = 0; j < 8; ++j) dy[j] = rstd * dy[j] - slope * x[j];
      if (in_head) store8(heads.dx + h * width, column, width, kVector, dy);
    }
  }
  add_groups<HeadGroup, 1>(totals, sums, partials + blockIdx.x * width, width);
}

// dgain[column] += the sum of partials[chunk, column], a column a thread; warps take every eighth chunk of 32 columns.
__global__ void __launch_bounds__(kGainWarps* kWarp)
    add_gain_partials_kernel(const float* partials, float* dgain, int64_t num_chunks, int64_t width) {
  __shared__ float sums[kGainWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float total = 0.0F;
  if (column < width) {
#pragma unroll 8
    for (int64_t chunk = warp; chunk < num_chunks; chunk += kGainWarps) total += partials[chunk * width + column];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int w = 1; w < kGainWarps; ++w) total += sums[w][lane];
  dgain[column] += total;
}

// Calls fn with the row group for backward's rows of `width`, and how many vectors of 8 a thread has of one.
template <class Fn>
void dispatch_backward(int64_t width, const Fn& fn) {
  const auto with = [&]<int kThreads, int kVectors>() {
    if (width > int64_t{8} * kThreads * kVectors) return false;
    fn(RowGroup<kThreads>{}, std::integral_constant<int, kVectors>{});
    return true;
  };
  const bool done = with.template operator()<kWarp, 1>() || with.template operator()<kWarp, 2>() ||
                    with.template operator()<kWarp, 3>() || with.template operator()<kWarp, 4>() ||
                    with.template operator()<kRowThreads, 1>() || with.template operator()<kRowThreads, 2>() ||
                    with.template operator()<kRowThreads, 4>() || with.template operator()<kRowThreads, 8>();
  static_assert(kMaxNormWidth == int64_t{8} * kRowThreads * 8);
  NMOE_CHECK(done, "the gradient of a norm over {} values", width);
}

// What a block of backward has of its groups' sums.
template <class Group>
size_t shared_bytes(int64_t width) {
  return Group::kRowsPerBlock > 1 ? static_cast<size_t>(Group::kRowsPerBlock * width) * sizeof(float) : 0;
}

}  // namespace

void rms_norm_forward(Context& ctx, const RmsNormForward& args) {
  const Tensor x = args.x, gain = args.gain, y = args.y, rstd = args.rstd;
  const auto eps = static_cast<float>(args.eps);

  const int64_t num_rows = norm_vectors(x), width = x.dim(-1);
  if (num_rows == 0) return;
  const bool vector = can_vectorise(width, x, gain, y), with_codes = makes_codes(y, 1, args.y_codes);
  const CodeRows codes = with_codes ? code_rows(y, args.y_codes) : CodeRows{};
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](auto group, unsigned grid) {
      launch_early(ctx, forward_kernel<decltype(group), T>, grid, kRowThreads, 0, vectors_of<T>(x), gains_of(args), eps,
                   vectors_of<T>(y), rstd.data<float>(), num_rows, width, vector, codes);
    };
    // Where there are few rows, the sooner one is done the better; its sum has one order by either.
    constexpr int64_t kBlockWidth = 512;
    if (ctx.starts_early && width >= kBlockWidth) return launch(RowGroup<kRowThreads>{}, grid_size(num_rows));
    dispatch_rows(num_rows, width, launch);
  });
  if (args.y_codes.defined() && !with_codes) quantize(ctx, quantize_rows(y, args.y_codes));
}

void rms_norm_backward(Context& ctx, const RmsNormBackward& args, const Tensor& partials) {
  const Tensor x = args.x, gain = args.gain, rstd = args.rstd, dy = args.dy, dx = args.dx, dgain = args.dgain;

  const int64_t num_rows = norm_vectors(x), width = x.dim(-1);
  const int64_t chunk_rows = gain_chunk_rows(num_rows, width);
  const int64_t num_chunks = partials.dim(0);
  if (num_rows == 0 || width == 0) return;
  const bool vector = can_vectorise(width, x, gain, dy, dx), with_codes = makes_codes(dx, 1, args.dx_codes);
  const CodeRows codes = with_codes ? code_rows(dx, args.dx_codes) : CodeRows{};
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    if (x.shape().rank() == 3 && width <= kMaxHeadSize && !args.accumulate_dx && !with_codes) {
      const int64_t head_groups = ceil_div(x.dim(1), int64_t{kHeads});
      const auto kernel = vector ? heads_backward_kernel<true, T> : heads_backward_kernel<false, T>;
      kernel<<<grid_size(num_chunks), kRowThreads, shared_bytes<HeadGroup>(width), ctx.stream>>>(
          vectors_of<T>(x), gains_of(args), rstd.data<float>(), vectors_of<T>(dy), vectors_of<T>(dx),
          partials.data<float>(), static_cast<unsigned>(x.dim(0) * head_groups), static_cast<unsigned>(head_groups));
      return;
    }
    dispatch_backward(width, [&](auto group, auto vectors) {
      using Group = decltype(group);
      const auto kernel = vector ? backward_kernel<Group, decltype(vectors)::value, true, T>
                                 : backward_kernel<Group, decltype(vectors)::value, false, T>;
      kernel<<<grid_size(num_chunks), kRowThreads, shared_bytes<Group>(width), ctx.stream>>>(
          vectors_of<T>(x), gains_of(args), rstd.data<float>(), vectors_of<T>(dy), vectors_of<T>(dx),
          partials.data<float>(), num_rows, width, chunk_rows, args.accumulate_dx, codes);
    });
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  if (args.dx_codes.defined() && !with_codes) quantize(ctx, quantize_rows(dx, args.dx_codes));
  add_gain_partials_kernel<<<grid_size(ceil_div(width, kWarp)), kGainWarps * kWarp, 0, ctx.stream>>>(
      partials.data<float>(), dgain.data<float>(), num_chunks, width);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
