// Muon. Everything but the three products of an iteration is memory-bound; these take most of the time. They are fp32
// for fp32 weights and TF32 for BF16 ones, on tensor cores, or in BF16 (MuonProducts), as the recipe's authors iterate:
// half the bytes, and twice the tensor cores' rate.
//
// With x [rows, cols] and G the Gram matrix of its shorter side, an iteration is
//   wide  x = a x + (b G + c G^2) x, G = x x^T        tall  x = a x + x (b G + c G^2), G = x^T x
// so that a tall matrix is never transposed. The sum of a matrix's squares is added up by slices of fixed size, then
// over the slices: one order. A step that is not to change anything (grad_scale is not finite) leaves momentum
// and weights alone; the products then run on whatever is in scratch.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/cuda/operations.h"
#include "ops/cuda/primitives/master_weight.cuh"
#include "ops/cuda/primitives/random_rounding.cuh"
#include "ops/cuda/primitives/warp.cuh"
#include "ops/cuda/runtime/check.h"
#include "ops/cuda/runtime/launch.h"
#include "ops/cuda/vendor/cublaslt.h"

namespace nmoe::cuda {
namespace {

// Keller Jordan's quintic, f(s) = a s + b s^3 + c s^5, as the Moonlight recipe uses it (arXiv 2502.16982, section 2.2):
// it pushes every singular value in (0, 1] towards 1, without converging to it.
constexpr float kA = 3.4445F, kB = -4.7750F, kC = 2.0315F;
constexpr float kNormEpsilon = 1e-7F;

constexpr int kThreads = 256;
constexpr int kAtOnce = 8;  // elements of a thread that are loaded before the first is needed
constexpr int64_t kShortSlice = int64_t{kThreads} * kAtOnce;

// Block (slice, matrix) of a stack of [size] matrices: its elements.
struct Slice {
  int64_t begin, end, offset;  // inside of the matrix; of the matrix in the stack
};
__device__ Slice own_slice(int64_t size, int64_t elements) {
  const int64_t begin = blockIdx.x * elements;
  return {begin, min(begin + elements, size), blockIdx.y * size};
}
// The thread's elements of a kShortSlice.
template <class Fn>
__device__ void for_each_own(const Slice& slice, const Fn& fn) {
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    const int64_t i = slice.begin + threadIdx.x + j * kThreads;
    if (i < slice.end) fn(j, slice.offset + i);
  }
}

// momentum = beta * momentum + g;  x = g + beta * momentum;  partials[matrix, slice] = the sum of x^2.
template <class Grad>
__global__ void __launch_bounds__(kThreads)
    nesterov_kernel(const Grad* __restrict__ grad, float* __restrict__ momentum, const double* grad_scale, float beta,
                    float* __restrict__ x, float* partials, int64_t size) {
  if (!isfinite(*grad_scale)) return;
  const auto scale = static_cast<float>(*grad_scale);
  const Slice all = own_slice(size, kMuonSlice);
  float squares = 0.0F;
  for (int64_t begin = all.begin; begin < all.end; begin += kShortSlice) {
    const Slice slice{begin, min(begin + kShortSlice, all.end), all.offset};
    float g[kAtOnce] = {}, old_momentum[kAtOnce] = {};
    for_each_own(slice, [&](int j, int64_t i) { g[j] = scale * to_float(grad[i]), old_momentum[j] = momentum[i]; });
    for_each_own(slice, [&](int j, int64_t i) {
      const float new_momentum = beta * old_momentum[j] + g[j], direction = g[j] + beta * new_momentum;
      momentum[i] = new_momentum;
      x[i] = direction;
      squares += direction * direction;
    });
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = squares;
}

// A stack's momentum in BF16, and its random bits.
struct RoundedMomentum {
  __nv_bfloat16* values;
  int64_t begin;  // index of the stack's first matrix among all
  const int64_t* key;
  uint64_t stream;
  const int32_t* matrices;  // null: there is one, whose first element is number `first` of the whole tensor
  int64_t first;
  int64_t matrix_size;

  // The index, in the whole tensor, of the first element of a matrix of the stack.
  __device__ int64_t first_of(int64_t matrix, int64_t size) const {
    const int64_t at = (begin + matrix) * size;
    return matrices == nullptr ? first + at : matrices[at / matrix_size] * matrix_size + at % matrix_size;
  }
  __device__ RandomBits bits(int64_t index) const {
    return {.key = static_cast<uint64_t>(*key), .stream = stream, .index = index};
  }
};

// As nesterov_kernel, of a momentum in BF16, fused as the CPU's. A thread has eight elements at a time. `vector`: they
// are the eight of one group of random bits, and their memory is aligned.
template <class Grad>
__global__ void __launch_bounds__(kThreads)
    nesterov_rounded_kernel(const Grad* __restrict__ grad, RoundedMomentum momentum, const double* grad_scale,
                            float beta, float* __restrict__ x, float* partials, int64_t size, bool vector) {
  if (!isfinite(*grad_scale)) return;
  const auto scale = static_cast<float>(*grad_scale);
  const Slice slice = own_slice(size, kMuonSlice);
  const int64_t first = momentum.first_of(blockIdx.y, size);
  __nv_bfloat16* const matrix = momentum.values + slice.offset;
  float squares = 0.0F;
  for (int64_t i = slice.begin + 8 * threadIdx.x; i < slice.end; i += 8 * kThreads) {
    float g[8], m[8], direction[8];
    load8(grad + slice.offset, i, size, vector, g);
    load8(matrix, i, size, vector, m);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      g[j] *= scale;
      m[j] = fmaf(beta, m[j], g[j]);
      direction[j] = fmaf(beta, m[j], g[j]);
      squares = fmaf(direction[j], direction[j], squares);
    }
    store8_at_random(matrix, i, size, vector, momentum.bits(first + i), m);
    store8(x + slice.offset, i, size, vector, direction);
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = squares;
}

// inverse_norms[matrix] = 1 / its Frobenius norm. A block a matrix.
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const float* partials, int64_t num_slices, float* inverse_norms) {
  float squares = 0.0F;
  for (int64_t i = threadIdx.x; i < num_slices; i += kThreads) squares += partials[blockIdx.x * num_slices + i];
  squares = block_sum(squares);
  if (threadIdx.x == 0) inverse_norms[blockIdx.x] = 1.0F / (sqrtf(squares) + kNormEpsilon);
}

// x = direction * its inverse norm; in place, if they have one format.
template <class Iterate>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const float* direction, const float* inverse_norms, Iterate* x, int64_t size) {
  const Slice slice = own_slice(size, kShortSlice);
  const float factor = inverse_norms[blockIdx.y];
  float value[kAtOnce];
  for_each_own(slice, [&](int j, int64_t i) { value[j] = direction[i]; });
  for_each_own(slice, [&](int j, int64_t i) { x[i] = from_float<Iterate>(value[j] * factor); });
}

// w -= lr * (step * x + weight_decay * w). `first` is the stack's first element among the weights.
template <class Weights, class Iterate>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(Weights w, int64_t first, const Iterate* x, const double* grad_scale, const double* rates, float step,
                 float weight_decay, int64_t size) {
  if (!isfinite(*grad_scale)) return;
  const auto lr = static_cast<float>(rates[0]);
  const float keep = 1.0F - lr * weight_decay, rate = lr * step;
  const Slice slice = own_slice(size, kShortSlice);
  float weight[kAtOnce][1], direction[kAtOnce];
  for_each_own(slice, [&](int j, int64_t i) {
    w.load(first + i, weight[j]);
    direction[j] = to_float(x[i]);
  });
  for_each_own(slice, [&](int j, int64_t i) {
    weight[j][0] = keep * weight[j][0] - rate * direction[j];
    w.store(first + i, weight[j]);
  });
}

// What the matrices of products are.
struct Format {
  DType dtype;
  bool tf32;
};

// A product of stacks of matrices: [rows, depth] by [depth, cols].
GemmProblem stacked_product(int64_t batch, int64_t rows, int64_t cols, int64_t depth, const Format& format) {
  // Every matrix of the stacks begins at a multiple of 16 bytes, or only the first does.
  const auto bytes = static_cast<int64_t>(dtype_bytes(format.dtype));
  const auto whole = [&](int64_t size) { return size * bytes % 16 == 0; };
  const bool aligned = batch == 1 || (whole(rows * depth) && whole(depth * cols) && whole(rows * cols));
  const uint32_t alignment = aligned ? 16 : static_cast<uint32_t>(bytes);
  return {.batch = batch,
          .rows = rows,
          .cols = cols,
          .depth = depth,
          .input = format.dtype,
          .output = format.dtype,
          .tf32 = format.tf32,
          .align_a = alignment,
          .align_b = alignment,
          .align_d = alignment,
          .workspace_bytes = kMuonWorkspaceBytes};
}

// Scratch of an iteration.
struct Buffers {
  void* gram;  // [batch, small, small], as is poly
  void* poly;
  void* workspace;
};

// One iteration on a stack of x [rows, cols] into next.
void iterate(const Context& ctx, int64_t batch, int64_t rows, int64_t cols, const Format& format, const void* x,
             void* next, const Buffers& buffers) {
  const bool tall = rows > cols;
  const int64_t small = std::min(rows, cols), large = std::max(rows, cols);
  const auto multiply = [&](const GemmProblem& problem, GemmOperands operands) {
    operands.workspace = buffers.workspace;
    ctx.cublas_lt.multiply(problem, operands, ctx.stream);
  };
  GemmProblem gram = stacked_product(batch, small, small, large, format);
  gram.transpose_a = tall;
  gram.transpose_b = !tall;
  multiply(gram, {.a = x, .b = x, .d = buffers.gram});

  multiply(stacked_product(batch, small, small, small, format),
           {.a = buffers.gram, .b = buffers.gram, .c = buffers.gram, .d = buffers.poly, .alpha = kC, .beta = kB});

  multiply(stacked_product(batch, rows, cols, small, format),
           {.a = tall ? x : buffers.poly, .b = tall ? buffers.poly : x, .c = x, .d = next, .alpha = 1.0F, .beta = kA});
}

// A stack of matrices of `size` elements, from matrix `begin` on.
struct Stack {
  int64_t begin, size;
  dim3 grid;
};

void update_momentum(const Context& ctx, const MuonStep& args, const Stack& stack, float* x, float* partials) {
  const int64_t first = stack.begin * stack.size;
  const auto* const grad_scale = args.grad_scale.data<double>();
  const auto beta = static_cast<float>(args.beta);
  dispatch_act(args.grad.dtype(), [&](auto element) {
    const auto* const grad = args.grad.data<decltype(element)>() + first;
    if (args.momentum.dtype() == DType::kBF16) {
      const Tensor& matrices = args.random.matrices;
      const RoundedMomentum momentum{
          .values = args.momentum.data<__nv_bfloat16>() + first,
          .begin = stack.begin,
          .key = args.random.key.data<int64_t>(),
          .stream = args.random.stream,
          .matrices = matrices.data_or_null<int32_t>(),
          .first = args.random.first,
          .matrix_size = matrices.defined() ? args.w.num_elements() / matrices.num_elements() : 0};
      const bool vector = can_vectorise(stack.size, args.grad, args.momentum) && args.random.first % 8 == 0;
      nesterov_rounded_kernel<<<stack.grid, kThreads, 0, ctx.stream>>>(grad, momentum, grad_scale, beta, x, partials,
                                                                       stack.size, vector);
    } else {
      nesterov_kernel<<<stack.grid, kThreads, 0, ctx.stream>>>(grad, args.momentum.data<float>() + first, grad_scale,
                                                               beta, x, partials, stack.size);
    }
  });
  NMOE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void muon_step(Context& ctx, const MuonStep& args, const MuonPlan& scratch) {
  const Shape& shape = args.w.shape();
  const int64_t batch = shape.rank() == 3 ? shape[0] : 1;
  const int64_t rows = shape[-2], cols = shape[-1], size = rows * cols;
  if (batch * size == 0) return;
  const int64_t stack = muon_stack(shape), num_slices = ceil_div(size, kMuonSlice);
  const auto step = static_cast<float>(0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))));
  const auto* grad_scale = args.grad_scale.data<double>();

  const Format format{scratch.x.dtype(), args.w.dtype() == DType::kBF16 && scratch.x.dtype() == DType::kF32};
  const Buffers buffers{scratch.gram.raw(), scratch.poly.raw(), scratch.workspace.raw()};

  dispatch_weights(args.w, args.low, [&](auto weights) {
    dispatch_act(format.dtype, [&](auto element) {
      using Iterate = decltype(element);
      for (int64_t begin = 0; begin < batch; begin += stack) {
        const int64_t count = std::min(stack, batch - begin), first = begin * size;
        const dim3 grid(grid_size(num_slices), short_grid_size(count));
        const dim3 short_grid(grid_size(ceil_div(size, kShortSlice)), grid.y);
        auto* const direction = scratch.direction.data<float>();
        auto* x = scratch.x.data<Iterate>();
        auto* next = scratch.next.data<Iterate>();
        update_momentum(ctx, args, {.begin = begin, .size = size, .grid = grid}, direction,
                        scratch.partials.data<float>());
        norm_kernel<<<grid_size(count), kThreads, 0, ctx.stream>>>(scratch.partials.data<float>(), num_slices,
                                                                   scratch.inverse_norms.data<float>());
        NMOE_CUDA_CHECK(cudaGetLastError());
        scale_kernel<<<short_grid, kThreads, 0, ctx.stream>>>(direction, scratch.inverse_norms.data<float>(), x, size);
        NMOE_CUDA_CHECK(cudaGetLastError());
        for (int iteration = 0; iteration < args.iterations; ++iteration) {
          iterate(ctx, count, rows, cols, format, x, next, buffers);
          std::swap(x, next);
        }
        apply_kernel<<<short_grid, kThreads, 0, ctx.stream>>>(weights, first, x, grad_scale, args.rates.data<double>(),
                                                              step, static_cast<float>(args.weight_decay), size);
        NMOE_CUDA_CHECK(cudaGetLastError());
      }
    });
  });
}

}  // namespace nmoe::cuda
