// Every loop is memory-bound: each element is read and written once, 16 bytes a thread.
//
// Reductions: a block adds up kReduceElements consecutive elements and leaves one partial sum; then one block adds the
// partial sums. Which elements a thread adds, and in which order, follows from the number of elements alone.
#include <cstring>

#include "base/random_math.h"
#include "base/rng.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/clock.cuh"
#include "ops/cuda/primitives/elements.cuh"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/primitives/tensor_table.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "tensor/convert.h"

namespace nmoe::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadElements = 8;  // of an elementwise kernel

unsigned elementwise_grid(int64_t size) { return grid_size(ceil_div(size, kThreads * kThreadElements)); }

template <class Word>
__global__ void __launch_bounds__(kThreads) fill_kernel(Word* x, int64_t size, Word value) {
  // A block's elements in turns of one a thread: the compiler's 8 stores are coalesced for any word.
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kThreads * kThreadElements + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kThreadElements; ++j) {
    const int64_t i = begin + j * kThreads;
    if (i < size) x[i] = value;
  }
}

template <class Word>
void fill_words(Context& ctx, Tensor x, uint64_t bits) {
  const int64_t size = x.num_elements();
  fill_kernel<<<elementwise_grid(size), kThreads, 0, ctx.stream>>>(static_cast<Word*>(x.raw()), size,
                                                                   static_cast<Word>(bits));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// Some 150 operations in double precision an element: a multiple of what writing it takes.
__global__ void __launch_bounds__(kThreads)
    normal_kernel(float* x, int64_t size, TruncatedNormal draws, double mass_below) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  const double u = random::to_unit(random::bits(draws.seed, draws.stream, static_cast<uint64_t>(draws.first + i)));
  x[i] = static_cast<float>(draws.std * random::truncated_normal(u, mass_below));
}

// The bits of `value` as an element of `dtype`, in the low bytes.
uint64_t element_bits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return std::bit_cast<uint64_t>(value);
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16: {
      const auto narrowed = static_cast<float>(value);
      uint64_t bits = 0;
      narrow(&narrowed, dtype, &bits, 1);
      return bits;
    }
    case DType::kI64:
      return static_cast<uint64_t>(static_cast<int64_t>(value));
    case DType::kI32:
      return static_cast<uint32_t>(static_cast<int32_t>(value));
    case DType::kI16:
      return static_cast<uint16_t>(static_cast<int16_t>(value));
    case DType::kU8:
      return static_cast<uint8_t>(value);
    case DType::kF8E4M3:
      break;
  }
  NMOE_CHECK(false, "{} is not a dtype of computations", dtype_name(dtype));
}

template <class Weights>
__global__ void __launch_bounds__(kThreads) split_weight_kernel(const float* master, Weights w, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  const float value[] = {master[i]};
  w.store(i, value);
}

template <class Weights>
__global__ void __launch_bounds__(kThreads) join_weight_kernel(Weights w, float* master, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  float value[1];
  w.load(i, value);
  master[i] = value[0];
}

// The terms of the reductions of one tensor.
struct Value {
  using Partial = double;
  __device__ static double of(float x) { return x; }
};
struct NonFinite {
  using Partial = int32_t;
  __device__ static int32_t of(float x) { return (__float_as_uint(x) & 0x7F800000U) == 0x7F800000U ? 1 : 0; }
};

// partials[block] = the sum of the terms of the block's elements. Those past the end load as 0, whose term is 0.
template <class Term, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const T* x, int64_t size, bool vector, typename Term::Partial* partials) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kReduceElements;
  const int64_t end = min(begin + kReduceElements, size);
  typename Term::Partial total = 0;
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * 8; i < end; i += kThreads * 8) {
    float values[8];
    load8(x, i, end, vector && i + 8 <= end, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) total += Term::of(values[j]);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// The same of rows of `width` elements that lie `stride` apart.
template <class Term, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_rows_kernel(const T* x, int64_t size, int64_t width, int64_t stride, typename Term::Partial* partials) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kReduceElements;
  const int64_t end = min(begin + kReduceElements, size);
  typename Term::Partial total = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    total += Term::of(to_float(x[i / width * stride + i % width]));
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// out[0] += the sum of the partial sums. One block.
template <class Partial>
__global__ void __launch_bounds__(kThreads)
    add_partials_kernel(const Partial* partials, int64_t num_partials, Partial* out) {
  Partial total = 0;
  for (int64_t i = threadIdx.x; i < num_partials; i += kThreads) total += partials[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *out += total;
}

// Sums of squares of many tensors.
struct SquaresEntry {
  const void* x;
  int64_t size;
  const double* parts;  // sums that are known; null: those of its blocks
  int num_parts;
  double* out;
  int num_added;  // tensors from here on that are added to `out`; 0 where an earlier one's say so
  bool is_bf16, vector;
};
using SquaresTable = TensorTable<SquaresEntry>;

template <class T>
__device__ double square_sum(const T* x, int64_t begin, int64_t end, bool vector) {
  double total = 0;
  for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * 8; i < end; i += kThreads * 8) {
    float values[8];
    load8(x, i, end, vector && i + 8 <= end, values);
#pragma unroll
    for (int j = 0; j < 8; ++j) total += static_cast<double>(values[j]) * static_cast<double>(values[j]);
  }
  return total;
}

// partials[block] = the sum of the squares of the block's elements.
__global__ void __launch_bounds__(kThreads)
    square_kernel(const __grid_constant__ SquaresTable table, double* partials) {
  const int index = table.find(blockIdx.x);
  const SquaresEntry& entry = table.entries[index];
  const int64_t begin = static_cast<int64_t>(blockIdx.x - table.first_block[index]) * kReduceElements;
  const int64_t end = min(begin + kReduceElements, entry.size);
  double total = 0;
  if (entry.is_bf16) {
    total = square_sum(static_cast<const __nv_bfloat16*>(entry.x), begin, end, entry.vector);
  } else {
    total = square_sum(static_cast<const float*>(entry.x), begin, end, entry.vector);
  }
  total = block_sum(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// totals[block] = the sum of the partial sums of a tensor.
__global__ void __launch_bounds__(kThreads)
    add_squares_kernel(const __grid_constant__ SquaresTable table, const double* partials, double* totals) {
  const SquaresEntry& entry = table.entries[blockIdx.x];
  const double* const parts = entry.parts == nullptr ? partials + table.first_block[blockIdx.x] : entry.parts;
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < entry.num_parts; i += kThreads) total += parts[i];
  total = block_sum(total);
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// Adds to each `out` the totals that are its own, by the thread of the first of them. One block.
__global__ void __launch_bounds__(kThreads)
    add_totals_kernel(const __grid_constant__ SquaresTable table, const double* totals) {
  __shared__ double shared[SquaresTable::kCapacity];
  for (int i = static_cast<int>(threadIdx.x); i < table.count; i += kThreads) shared[i] = totals[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < table.count; i += kThreads) {
    const SquaresEntry& entry = table.entries[i];
    if (entry.num_added == 0) continue;
    double sum = *entry.out;
    for (int j = 0; j < entry.num_added; ++j) sum += shared[i + j];
    *entry.out = sum;
  }
}

template <class Term>
void reduce(Context& ctx, Tensor x, Tensor out, Tensor partials) {
  using Partial = typename Term::Partial;
  const int64_t size = x.num_elements(), num_blocks = partials.dim(0);
  if (size == 0) return;
  dispatch_act(x.dtype(), [&](auto element) {
    using T = decltype(element);
    if (x.dense()) {
      reduce_kernel<Term><<<grid_size(num_blocks), kThreads, 0, ctx.stream>>>(x.data<T>(), size, can_vectorise(8, x),
                                                                              partials.data<Partial>());
    } else {
      reduce_rows_kernel<Term><<<grid_size(num_blocks), kThreads, 0, ctx.stream>>>(
          x.rows_data<T>(), size, x.shape().row_elements(), x.stride(), partials.data<Partial>());
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
  add_partials_kernel<<<1, kThreads, 0, ctx.stream>>>(partials.data<Partial>(), num_blocks, out.data<Partial>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

// One thread: the order is what is wanted, and there are few.
// order may be null.
__global__ void sum_in_order_kernel(const double* x, const int32_t* order, int64_t size, double* out) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += x[order == nullptr ? i : order[i]];
  *out = sum;
}

__global__ void add_time_kernel(double* sum, int64_t* begun, bool begin) {
  const auto now = static_cast<int64_t>(global_time_ns());
  if (begin) {
    *begun = now;
  } else {
    *sum += static_cast<double>(now - *begun);
  }
}

__global__ void clip_scale_kernel(const double* sum_squares, const double* loss_sum, double max_norm, double* scale,
                                  int32_t* stopped) {
  const double squares = *sum_squares;
  if (!isfinite(squares) || !isfinite(*loss_sum)) *stopped = 1;
  const double clipped = max_norm == 0 ? 1.0 : fmin(1.0, max_norm / sqrt(squares));
  *scale = *stopped == 0 ? clipped : __longlong_as_double(0x7FF8000000000000LL);
}

}  // namespace

void fill(Context& ctx, const Fill& args) {
  const Tensor x = args.x;

  const uint64_t bits = element_bits(x.dtype(), args.value);
  if (x.num_elements() == 0) return;
  if (bits == 0) {
    NMOE_CUDA_CHECK(cudaMemsetAsync(x.raw(), 0, static_cast<size_t>(x.num_bytes()), ctx.stream));
    return;
  }
  switch (dtype_bytes(x.dtype())) {
    case 8:
      return fill_words<uint64_t>(ctx, x, bits);
    case 4:
      return fill_words<uint32_t>(ctx, x, bits);
    case 2:
      return fill_words<uint16_t>(ctx, x, bits);
    default:
      return fill_words<uint8_t>(ctx, x, bits);
  }
}

void fill_truncated_normal(Context& ctx, const FillTruncatedNormal& args) {
  const Tensor x = args.x;
  const TruncatedNormal& draws = args.draws;

  float* values = x.data<float>();
  if (x.num_elements() == 0) return;
  normal_kernel<<<grid_size(ceil_div(x.num_elements(), kThreads)), kThreads, 0, ctx.stream>>>(
      values, x.num_elements(), draws, normal_mass_below(-draws.truncation));
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void copy(Context& ctx, const Copy& args) {
  const Tensor source = args.source, destination = args.destination;

  if (source.num_elements() == 0) return;
  NMOE_CUDA_CHECK(cudaMemcpyAsync(destination.raw(), source.raw(), static_cast<size_t>(source.num_bytes()),
                                  cudaMemcpyDefault, ctx.stream));
}

void split_weight(Context& ctx, const SplitWeight& args) {
  const Tensor master = args.master, w = args.w, low = args.low;

  const int64_t size = master.num_elements();
  dispatch_weights(w, low, [&](auto weights) {
    if (size == 0) return;
    split_weight_kernel<<<grid_size(ceil_div(size, kThreads)), kThreads, 0, ctx.stream>>>(master.data<float>(), weights,
                                                                                          size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void join_weight(Context& ctx, const JoinWeight& args) {
  const Tensor w = args.w, low = args.low, master = args.master;

  const int64_t size = master.num_elements();
  dispatch_weights(w, low, [&](auto weights) {
    if (size == 0) return;
    join_weight_kernel<<<grid_size(ceil_div(size, kThreads)), kThreads, 0, ctx.stream>>>(weights, master.data<float>(),
                                                                                         size);
    NMOE_CUDA_CHECK(cudaGetLastError());
  });
}

void sum(Context& ctx, const Sum& args, const Tensor& partials) { reduce<Value>(ctx, args.x, args.out, partials); }

void sums_of_squares(Context& ctx, const SumsOfSquares& args, const SquaresScratch& room) {
  SquaresTable table;
  int first = 0;  // in the table, of those that are added to the same number
  const auto launch = [&] {
    if (table.count == 0) return;
    auto* const partials = room.partials.data<double>();
    auto* const totals = room.totals.data<double>();
    if (table.num_blocks > 0) {
      square_kernel<<<grid_size(table.num_blocks), kThreads, 0, ctx.stream>>>(table, partials);
      NMOE_CUDA_CHECK(cudaGetLastError());
    }
    add_squares_kernel<<<grid_size(table.count), kThreads, 0, ctx.stream>>>(table, partials, totals);
    NMOE_CUDA_CHECK(cudaGetLastError());
    add_totals_kernel<<<1, kThreads, 0, ctx.stream>>>(table, totals);
    NMOE_CUDA_CHECK(cudaGetLastError());
    table.clear();
  };
  for (const SumOfSquares& one : args.all) {
    const Tensor x = one.x, parts = one.parts;
    double* const out = one.out.data<double>();
    const int64_t size = x.num_elements(), blocks = num_square_blocks(one);
    if (size == 0 && !parts.defined()) continue;
    if (table.is_full(blocks)) launch();
    if (table.count == 0 || table.entries[first].out != out) first = table.count;
    table.add({.x = x.raw(),
               .size = size,
               .parts = parts.data_or_null<double>(),
               .num_parts = static_cast<int>(parts.defined() ? parts.num_elements() : blocks),
               .out = out,
               .num_added = 0,
               .is_bf16 = x.dtype() == DType::kBF16,
               .vector = can_vectorise(8, x)},
              blocks);
    ++table.entries[first].num_added;
  }
  launch();
}

void sum_in_order(Context& ctx, const SumInOrder& args) {
  const int32_t* order = args.order.data_or_null<int32_t>();
  sum_in_order_kernel<<<1, 1, 0, ctx.stream>>>(args.x.data<double>(), order, args.x.num_elements(),
                                               args.out.data<double>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void add_time(Context& ctx, const AddTime& args) {
  add_time_kernel<<<1, 1, 0, ctx.stream>>>(args.sum.data<double>(), args.begun.data<int64_t>(), args.begin);
  NMOE_CUDA_CHECK(cudaGetLastError());
}

void count_non_finite(Context& ctx, const CountNonFinite& args, const Tensor& partials) {
  reduce<NonFinite>(ctx, args.x, args.out, partials);
}

void clip_scale(Context& ctx, const ClipScale& args) {
  clip_scale_kernel<<<1, 1, 0, ctx.stream>>>(args.sum_squares.data<double>(), args.loss_sum.data<double>(),
                                             args.max_norm, args.scale.data<double>(), args.stopped.data<int32_t>());
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nmoe::cuda
