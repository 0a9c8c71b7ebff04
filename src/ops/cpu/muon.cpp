#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/cpu/gemm.h"
#include "ops/cpu/operations.h"
#include "ops/moment_rounding.h"
#include "tensor/convert.h"

namespace nmoe::cpu {
namespace {

// Keller Jordan's quintic, f(s) = a s + b s^3 + c s^5, as the Moonlight recipe uses it (arXiv 2502.16982, section 2.2):
// it pushes every singular value in (0, 1] towards 1, without converging to it.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kNormEpsilon = 1e-7;

constexpr int64_t kTile = 128;         // side of an output tile of a product
constexpr int64_t kSlice = 16 * 1024;  // elements of an elementwise task

// The matrices of one Newton-Schulz iteration; x is [small, large] with small <= large.
template <class Real>
struct Workspace {
  Real* x;        // [small, large]
  Real* next;     // [small, large]
  Real* gram;     // [small, small]
  Real* poly;     // [small, small]
  Real* partial;  // one sum of squares a slice
  Tensor panels;  // gemm's scratch of every thread
};

template <class Real>
struct Problem {
  int64_t rows, cols, small, large;
  Real* w;
  const Real* grad;           // or, in BF16,
  const uint16_t* grad_bits;  // that become `grad` first
  Real* momentum;             // or, in BF16,
  uint16_t* momentum_bits;    // whose random bits are these
  uint64_t key, stream;
  int64_t first;  // index, in the whole tensor, of the matrix's first element
  Real grad_scale, lr, beta, weight_decay;
  int iterations;
  bool in_bf16;  // MuonProducts

  bool transposed() const { return rows > cols; }
};

// Runs task(i, thread) for i from 0 to num_tasks - 1, on one thread or on all. The tasks write apart, so their order
// does not matter. Not a template parameter: code compiled twice may round differently.
using Task = std::function<void(int64_t task, int thread)>;
using RunTasks = std::function<void(int64_t num_tasks, const Task& task)>;

// to[j, i] = from[i, j] for i < rows, j < cols, in blocks small enough that the cache keeps both sides' lines.
template <class Real>
void transpose(int64_t rows, int64_t cols, const Real* from, int64_t from_stride, Real* to, int64_t to_stride) {
  constexpr int64_t kBlock = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
      for (int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i) {
        for (int64_t j = j0; j < std::min(j0 + kBlock, cols); ++j) to[j * to_stride + i] = from[i * from_stride + j];
      }
    }
  }
}

// The transpose of a dense [rows, cols], in tasks of some of its rows.
template <class Real>
void transpose(const RunTasks& run_tasks, int64_t rows, int64_t cols, const Real* from, Real* to) {
  run_tasks(ceil_div(rows, kTile), [&](int64_t task, int) {
    const int64_t row = task * kTile;
    transpose(std::min(kTile, rows - row), cols, from + row * cols, cols, to + row, rows);
  });
}

// c = alpha * a op(b) over tiles; a is [m, k], c [m, n], both dense. With `symmetric` the product is known to equal its
// transpose: only tiles on and below the diagonal are computed, the others mirrored.
template <class Real>
void tiled_gemm(const RunTasks& run_tasks, const Tensor& panels, bool symmetric, int64_t m, int64_t n, int64_t k,
                Real alpha, const Real* a, const Operand<Real>& b, Real* c) {
  const int64_t across = ceil_div(n, kTile);
  run_tasks(ceil_div(m, kTile) * across, [&](int64_t task, int thread) {
    const int64_t row = task / across * kTile, col = task % across * kTile;
    if (symmetric && col > row) return;
    const int64_t rows = std::min(kTile, m - row), cols = std::min(kTile, n - col);
    Operand<Real> b_tile = b;
    b_tile.data += b.transpose == Transpose::kYes ? col * b.stride : col;
    gemm<Real>(panels[thread].data<Real>(), rows, cols, k, alpha, {a + row * k, k}, b_tile, 0, c + row * n + col, n);
    if (!symmetric || col == row) return;
    transpose(rows, cols, c + row * n + col, n, c + col * n + row, n);
  });
}

// x = x + factor * y, rounded to BF16; y may be null.
template <class Real>
void add_in_bf16(const RunTasks& run_tasks, int64_t size, Real* x, Real factor, const Real* y) {
  run_tasks(ceil_div(size, kSlice), [&](int64_t slice, int) {
    for (int64_t i = slice * kSlice; i < std::min((slice + 1) * kSlice, size); ++i) {
      const Real sum = y == nullptr ? x[i] : std::fma(factor, y[i], x[i]);
      x[i] = bf16_to_float(float_to_bf16(static_cast<float>(sum)));
    }
  });
}

// Elements [begin, end) of a momentum in BF16, and of the direction x; the sum of its squares. Fused as CUDA's.
template <class Real>
Real rounded_direction(const Problem<Real>& p, Real* x, int64_t begin, int64_t end) {
  random::Words words{};
  Real sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = p.first + i;
    if (i == begin || index % 8 == 0) words = moments::rounding_words(p.key, p.stream, index / 8);
    const Real g = p.grad_scale * p.grad[i];
    const Real momentum = std::fma(p.beta, bf16_to_float(p.momentum_bits[i]), g);
    const uint32_t random = moments::first_bits(words, static_cast<int>(index % 8));
    p.momentum_bits[i] = static_cast<uint16_t>(moments::to_bf16(static_cast<float>(momentum), random) >> 16);
    x[i] = std::fma(p.beta, momentum, g);
    sum += x[i] * x[i];
  }
  return sum;
}

// One iteration from x into next: gram = x x^T;  poly = a + b gram + c gram^2;  next = poly x. In BF16 poly is without
// a, which would round away the rest, and next = a x + poly x.
template <class Real>
void iterate(const Problem<Real>& p, const Workspace<Real>& ws, const RunTasks& run_tasks, const Real* x, Real* next) {
  const int64_t square = p.small * p.small;
  const Operand<Real> x_transposed{x, p.large, Transpose::kYes};
  tiled_gemm<Real>(run_tasks, ws.panels, true, p.small, p.small, p.large, 1, x, x_transposed, ws.gram);
  if (p.in_bf16) add_in_bf16<Real>(run_tasks, square, ws.gram, 0, nullptr);
  tiled_gemm<Real>(run_tasks, ws.panels, true, p.small, p.small, p.small, static_cast<Real>(kC), ws.gram,
                   {ws.gram, p.small}, ws.poly);
  if (p.in_bf16) {
    add_in_bf16<Real>(run_tasks, square, ws.poly, static_cast<Real>(kB), ws.gram);
  } else {
    run_tasks(p.small, [&](int64_t i, int) {
      Real* row = ws.poly + i * p.small;
      for (int64_t j = 0; j < p.small; ++j) row[j] += static_cast<Real>(kB) * ws.gram[i * p.small + j];
      row[i] += static_cast<Real>(kA);
    });
  }
  tiled_gemm<Real>(run_tasks, ws.panels, false, p.small, p.large, p.small, 1, ws.poly, {x, p.large}, next);
  if (p.in_bf16) add_in_bf16<Real>(run_tasks, p.small * p.large, next, static_cast<Real>(kA), x);
}

// One matrix.
template <class Real>
void update_matrix(Problem<Real> p, const Workspace<Real>& ws, const RunTasks& run_tasks) {
  const int64_t size = p.rows * p.cols;
  const int64_t num_slices = ceil_div(size, kSlice);
  const auto run_slices = [&](const std::function<void(int64_t slice, int64_t begin, int64_t end)>& fn) {
    run_tasks(num_slices, [&](int64_t slice, int) { fn(slice, slice * kSlice, std::min((slice + 1) * kSlice, size)); });
  };
  Real* x = ws.x;
  Real* next = ws.next;

  if (p.grad_bits != nullptr) {
    run_slices([&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) next[i] = bf16_to_float(p.grad_bits[i]);
    });
    p.grad = next;  // until the direction is there
  }

  // x becomes the Nesterov direction divided by its Frobenius norm, with the short side first.
  run_slices([&](int64_t slice, int64_t begin, int64_t end) {
    if (p.momentum_bits != nullptr) {
      ws.partial[slice] = rounded_direction(p, x, begin, end);
      return;
    }
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      const Real g = p.grad_scale * p.grad[i];
      p.momentum[i] = p.beta * p.momentum[i] + g;
      x[i] = g + p.beta * p.momentum[i];
      sum += x[i] * x[i];
    }
    ws.partial[slice] = sum;
  });
  Real sum_squares = 0;
  for (int64_t slice = 0; slice < num_slices; ++slice) sum_squares += ws.partial[slice];
  const Real inverse_norm = 1 / (std::sqrt(sum_squares) + static_cast<Real>(kNormEpsilon));
  run_slices([&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[i] *= inverse_norm;
  });
  if (p.transposed()) {
    transpose(run_tasks, p.rows, p.cols, x, next);
    std::swap(x, next);
  }

  if (p.in_bf16) add_in_bf16<Real>(run_tasks, size, x, 0, nullptr);
  for (int iteration = 0; iteration < p.iterations; ++iteration) {
    iterate(p, ws, run_tasks, x, next);
    std::swap(x, next);
  }

  if (p.transposed()) {
    transpose(run_tasks, p.small, p.large, x, next);
    std::swap(x, next);
  }
  const Real step = p.lr * static_cast<Real>(0.2) * std::sqrt(static_cast<Real>(p.large));
  const Real keep = 1 - p.lr * p.weight_decay;
  run_slices([&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) p.w[i] = keep * p.w[i] - step * x[i];
  });
}

}  // namespace

template <class Real>
void muon_step(Context& ctx, const MuonStep& args) {
  const Shape& shape = args.w.shape();
  const int64_t batch = shape.rank() == 3 ? shape[0] : 1;
  const int64_t rows = shape[-2], cols = shape[-1], size = rows * cols;
  const int64_t small = std::min(rows, cols), large = std::max(rows, cols);

  // Many matrices: a thread each. Few: all threads on one after another. The tasks of a matrix are the same.
  const bool matrix_per_thread = batch >= ctx.num_threads();
  const int64_t num_workspaces = matrix_per_thread ? ctx.num_threads() : 1;
  ArenaScope scope(ctx.scratch);
  const DType dtype = DTypeOf<Real>::value;
  const Tensor x = scope.allocate(dtype, {num_workspaces, size});
  const Tensor next = scope.allocate(dtype, {num_workspaces, size});
  const Tensor gram = scope.allocate(dtype, {num_workspaces, small * small});
  const Tensor poly = scope.allocate(dtype, {num_workspaces, small * small});
  const Tensor partial = scope.allocate(dtype, {num_workspaces, ceil_div(size, kSlice)});
  const Tensor panels = claim_gemm_scratch<Real>(scope, ctx);
  if (ctx.counting() || !std::isfinite(*args.grad_scale.data<double>())) return;

  const bool widens = args.grad.dtype() == DType::kBF16;
  const bool rounds = args.momentum.dtype() == DType::kBF16;
  const MomentRounding& random = args.random;
  const int64_t matrix_size = random.matrices.defined() ? batch * size / random.matrices.num_elements() : batch * size;
  const auto first_of = [&](int64_t index) {
    const int64_t at = index * size;
    if (!random.matrices.defined()) return random.first + at;
    return random.matrices.data<int32_t>()[at / matrix_size] * matrix_size + at % matrix_size;
  };
  const auto problem = [&](int64_t index) {
    return Problem<Real>{.rows = rows,
                         .cols = cols,
                         .small = small,
                         .large = large,
                         .w = args.w.data<Real>() + index * size,
                         .grad = widens ? nullptr : args.grad.data<Real>() + index * size,
                         .grad_bits = widens ? static_cast<const uint16_t*>(args.grad.raw()) + index * size : nullptr,
                         .momentum = rounds ? nullptr : args.momentum.data<Real>() + index * size,
                         .momentum_bits = rounds ? static_cast<uint16_t*>(args.momentum.raw()) + index * size : nullptr,
                         .key = rounds ? static_cast<uint64_t>(*random.key.data<int64_t>()) : 0,
                         .stream = random.stream,
                         .first = first_of(index),
                         .grad_scale = static_cast<Real>(*args.grad_scale.data<double>()),
                         .lr = static_cast<Real>(*args.rates.data<double>()),
                         .beta = static_cast<Real>(args.beta),
                         .weight_decay = static_cast<Real>(args.weight_decay),
                         .iterations = args.iterations,
                         .in_bf16 = args.products == MuonProducts::kBf16};
  };
  const auto workspace = [&](int64_t index) {
    return Workspace<Real>{.x = x[index].data<Real>(),
                           .next = next[index].data<Real>(),
                           .gram = gram[index].data<Real>(),
                           .poly = poly[index].data<Real>(),
                           .partial = partial[index].data<Real>(),
                           .panels = panels};
  };
  if (matrix_per_thread) {
    ctx.pool.parallel_for(batch, [&](int64_t index, int thread) {
      update_matrix(problem(index), workspace(thread), [thread](int64_t num_tasks, const Task& task) {
        for (int64_t i = 0; i < num_tasks; ++i) task(i, thread);
      });
    });
  } else {
    for (int64_t index = 0; index < batch; ++index) {
      update_matrix(problem(index), workspace(0),
                    [&ctx](int64_t num_tasks, const Task& task) { ctx.pool.parallel_for(num_tasks, task); });
    }
  }
}

NMOE_CPU_INSTANTIATE(muon_step, MuonStep)

}  // namespace nmoe::cpu
